"""Consolidation: the fewest running tasks that restart elsewhere so that gangs can start.

Mathematics: models/formulation/consolidation.md.
"""
