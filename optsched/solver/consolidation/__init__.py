"""Consolidation: restart the fewest running tasks on other nodes so that gangs can start.

Mathematics: models/formulation/consolidation.md.
"""
