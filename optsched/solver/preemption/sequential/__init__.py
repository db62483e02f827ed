"""Find the fewest and cheapest victims for pending gangs, one gang after the other.

Mathematics: models/formulation/victims.md and entitled.md.
"""
