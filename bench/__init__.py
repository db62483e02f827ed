"""Benchmarks that check the results they measure and report ratios within one run."""
