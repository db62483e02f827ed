"""Find the fewest and cheapest victims for pending gangs, gang by gang.

Mathematics: models/formulation/victims.md and entitled.md.
"""
