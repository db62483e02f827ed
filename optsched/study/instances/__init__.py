"""Benchmark instances of the project, generated from a seed, with their best known plans."""
