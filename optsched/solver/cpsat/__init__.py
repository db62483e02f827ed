"""Exact levels by CP-SAT. The only room that loads OR-Tools, and only in a worker process."""
