"""Compile a snapshot into read-only arrays and equivalence classes for the engines.

Array axes: T pending tasks, C task classes, N nodes, S gang shapes, E entries of gang shapes, G
gangs, Q queues, R resources, D domains of a node label. Amounts are int64 numbers in base units of
each resource.
"""
