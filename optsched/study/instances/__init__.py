"""Benchmark instances of our own: made from a seed, with the best that is known of each."""
