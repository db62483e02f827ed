"""Preemption and reclaim: which running tasks are evicted so that gangs can start.

The package `joint` chooses victims for all gangs of a session in one model. The package
`sequential` chooses victims for one gang after the other.
Mathematics: models/formulation/victims.md and entitled.md.
"""
