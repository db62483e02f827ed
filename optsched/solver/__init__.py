"""The engines: the greedy pipeline, CP-SAT, preemption and consolidation."""
