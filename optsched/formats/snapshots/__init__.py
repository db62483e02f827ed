"""Snapshots: assembly from Kubernetes objects in any source, and encoding as such objects."""
