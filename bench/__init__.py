"""Benchmarks: what they measure they also check, and what they report is a ratio within one run."""
