"""Preemption and reclaim: select running tasks to evict, so that gangs can start.

The package `joint` selects victims for all gangs of a session in one integer program. The package
`sequential` selects victims gang by gang. Mathematics: models/formulation/victims.md and
entitled.md.
"""
