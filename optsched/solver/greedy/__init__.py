"""Volcano's actions without a solver, on vectors of node fits and node scores per task class."""
