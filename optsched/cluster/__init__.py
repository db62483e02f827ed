"""The objects of a session: nodes, tasks, gangs and queues at one instant, and decisions.

All values are immutable. This package uses no NumPy, no I/O and no API client. Every amount is an
exact integer in base units (milli-CPU, bytes, counts; see `optsched.units`). Every collection is
ordered, and every order breaks ties by name.
"""
