"""Jobs of batch.volcano.sh: `reconcile` decides what one of them needs to happen."""
