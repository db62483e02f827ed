"""One integer program for a session, which selects gangs to start, nodes and victims."""
