"""Find the fewest and cheapest victims for the gangs that have to start, gang by gang.

Mathematics: models/formulation/victims.md and entitled.md.
"""
