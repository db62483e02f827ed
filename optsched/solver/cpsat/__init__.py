"""Solve level models with CP-SAT.

Only the package `cpsat` imports OR-Tools. A live scheduler imports OR-Tools only in a worker
process.
"""
