"""Engines that compute decisions: the greedy pipeline, CP-SAT, preemption and consolidation."""
