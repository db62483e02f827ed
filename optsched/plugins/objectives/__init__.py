"""Levels of the objective: their names, their form in a problem, and the weights of gangs."""
