"""Snapshots: assembly from objects, files and folders, and encoding as objects."""
