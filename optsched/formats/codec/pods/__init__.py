"""Pods as tasks and tasks as pods: requests, constraints, annotations, shape keys."""
