"""Scheduling studies: emulated clusters, synthetic workloads and comparisons of models."""
