"""Gangs: minimum members, sub-groups, and votes on enqueueing."""
