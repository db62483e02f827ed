"""Engines that turn problems into decisions: the greedy pipeline, CP-SAT models, preemption."""
