"""The controller of Jobs (batch.volcano.sh); see `reconcile.job_controller`."""
