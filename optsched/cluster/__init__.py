"""The cluster objects that a session reads (nodes, tasks, gangs, queues), and its decisions.

All values are immutable. This package uses no NumPy, no I/O and no API client. Every amount is an
exact integer in base units (milli-CPU, bytes, counts; see `optsched.units`). Every collection is
sorted, with ties broken by name.
"""
