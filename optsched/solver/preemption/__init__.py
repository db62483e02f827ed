"""Preemption and reclaim: choose the running tasks to evict so that gangs can start.

`joint` chooses victims for all gangs of a session in one integer program; `sequential` chooses them
gang by gang. Mathematics: models/formulation/victims.md and entitled.md.
"""
