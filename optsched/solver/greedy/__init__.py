"""Volcano's actions without a solver; each task class has vectors of node fits and scores."""
