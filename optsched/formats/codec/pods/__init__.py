"""Conversion between pods and tasks: requests, placement constraints and annotations."""
