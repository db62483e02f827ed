"""Placement of tasks relative to each other: network domains, affinity, spread, buckets."""
