"""One model for all gangs of a session, which selects starting gangs, nodes and victims."""
