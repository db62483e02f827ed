"""The objects of a session: nodes, tasks, gangs, queues at one instant, and decisions.

Frozen values only: no NumPy, no I/O, no client. Every amount is an exact integer in base units
(milli-CPU, bytes, counts; see `optsched.units`), every collection is ordered, every order ends in a
name.
"""
