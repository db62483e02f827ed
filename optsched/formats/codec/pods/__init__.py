"""Conversion between pods and tasks: requests, constraints, annotations, shape keys."""
