"""Levels of the objective: level names, level instances in a problem, and gang weights."""
