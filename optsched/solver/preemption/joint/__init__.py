"""One model that chooses, for all gangs of a session, which start, their nodes and victims."""
