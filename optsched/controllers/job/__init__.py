"""Jobs of batch.volcano.sh; `reconcile` returns the effects that a job requires."""
