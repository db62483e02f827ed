"""Levels of the objective: their names, what each becomes, and how much a gang counts."""
