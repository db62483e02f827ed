"""Volcano's actions without a solver, with vectors of node fits and scores for each task class."""
