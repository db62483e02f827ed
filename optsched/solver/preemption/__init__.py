"""Preemption and reclaim: which running tasks are evicted so that gangs can start.

`joint` decides all gangs of a session in one model; `sequential` decides gang by gang.
Mathematics: models/formulation/victims.md and entitled.md.
"""
