"""Room by eviction: the fewest and cheapest running tasks that let a gang start.

Mathematics: models/formulation/victims.md and entitled.md.
"""
