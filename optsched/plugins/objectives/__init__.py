"""Levels of the objective: their names, the levels of a problem, and the weights of gangs."""
