"""Snapshots from objects, files and folders, and snapshots as objects."""
