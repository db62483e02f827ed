"""Read-only commands on a live cluster: explain a job, predict a job, write a snapshot."""
