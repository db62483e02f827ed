"""Assemble snapshots from Kubernetes objects of any source, and encode them as such objects."""
