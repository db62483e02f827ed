"""Levels of the objective: their names, and the levels that depend on gangs and queues."""
