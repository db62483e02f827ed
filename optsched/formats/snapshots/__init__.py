"""Convert Kubernetes objects to snapshots and snapshots to Kubernetes objects."""
