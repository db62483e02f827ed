"""Find, gang by gang, the fewest and cheapest victims that let one gang start.

Mathematics: models/formulation/victims.md and entitled.md.
"""
