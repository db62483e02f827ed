"""One integer program that chooses a session's starting gangs, their nodes and the victims."""
