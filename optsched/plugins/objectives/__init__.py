"""Levels of the objective: their names, their instances in a problem, and the gang weights."""
