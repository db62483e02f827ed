"""Solve level models with CP-SAT.

Only this package loads OR-Tools; a live scheduler loads it in a worker process alone.
"""
