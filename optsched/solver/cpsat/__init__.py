"""Solve level models with CP-SAT. Only this package loads OR-Tools, in a worker process alone."""
