"""Solve level models with CP-SAT.

Only this package imports OR-Tools. A live scheduler imports OR-Tools only in a worker process.
"""
