"""Placement of tasks relative to other tasks: network domains, affinity, spread, task topology."""
