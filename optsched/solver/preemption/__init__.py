"""Preemption and reclaim: choose the running tasks to evict so that gangs can start.

`joint` chooses the victims for all gangs of a session in one integer program; `sequential` chooses
victims gang by gang. Mathematics: models/formulation/victims.md and entitled.md.
"""
