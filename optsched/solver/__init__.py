"""Engines that make the decisions: the greedy pipeline, CP-SAT, preemption and consolidation."""
