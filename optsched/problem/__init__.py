"""A snapshot as read-only arrays and equivalence classes, the input of the engines.

Array axes: T pending tasks, C task classes, N nodes, S gang shapes, E entries of gang shapes,
G gangs, Q queues, R resources, D domains of a node label. Amounts are int64 in base units.
"""
