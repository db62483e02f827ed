"""Synthetic clusters and traces, reproducible from a seed."""
