"""Gangs: minimum members, subgroups, and votes on enqueueing."""
