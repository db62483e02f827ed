"""One integer program for the starting gangs of a session, their tasks' nodes and the victims."""
