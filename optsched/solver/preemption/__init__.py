"""Preemption and reclaim: the choice of running tasks to evict, so that gangs can start.

The package `joint` chooses victims for all gangs of a session in one model. The package
`sequential` chooses victims for one gang after the other.
Mathematics: models/formulation/victims.md and entitled.md.
"""
