"""Engines that compute decisions for a problem: the greedy pipeline, CP-SAT, preemption."""
