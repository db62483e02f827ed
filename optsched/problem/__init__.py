"""Compile a snapshot into read-only arrays and equivalence classes for the engines.

Array axes: T pending tasks, C task classes, N nodes, S gang shapes, E entries (groups of equal
pending tasks in one gang shape), G gangs, Q queues, R resources, D network domains. A gang shape
holds the properties that interchangeable gangs share. Amounts are int64 in base units of the
resource.
"""
