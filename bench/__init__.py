"""Benchmarks; each checks its results and reports ratios of measurements from the same run."""
