"""Volcano's actions without a solver; each task class has arrays of node fits and scores."""
