"""Read-only commands on a live cluster: explain a job, predict its start, write a snapshot."""
