"""Volcano's actions without a solver, with a vector of fits and scores for each task class."""
