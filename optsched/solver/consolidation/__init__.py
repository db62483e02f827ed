"""Room by moving: the fewest running tasks that start again elsewhere so that gangs can start.

Mathematics: models/formulation/consolidation.md.
"""
