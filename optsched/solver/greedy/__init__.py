"""Volcano's actions without a solver, on arrays of node fits and scores per task class."""
