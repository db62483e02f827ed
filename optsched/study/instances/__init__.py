"""Benchmark instances that are generated from a seed, and the best known plans for them."""
