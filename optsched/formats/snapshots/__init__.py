"""Snapshots: assembly from Kubernetes objects, files and folders, and encoding as objects."""
