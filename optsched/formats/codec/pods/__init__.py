"""Conversion between pods and tasks: requests, scheduling constraints and annotations."""
