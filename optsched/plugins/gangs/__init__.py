"""Gangs: minimum members, sub-groups, and which gangs are enqueued."""
