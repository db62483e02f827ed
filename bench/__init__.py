"""Benchmarks; each checks the results that it measures, and reports ratios within one run."""
