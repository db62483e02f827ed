"""One model for all gangs of a session: gangs that start, their nodes, and their victims."""
