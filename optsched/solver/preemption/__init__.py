"""Preemption and reclaim: which running tasks are evicted so that gangs can start.

`joint` decides all gangs of a session in one model; `sequential` decides one gang after the other.
Mathematics: models/formulation/victims.md and entitled.md.
"""
