"""Find the fewest and cheapest victims for each gang that has to start, gang by gang.

Mathematics: models/formulation/victims.md and entitled.md.
"""
