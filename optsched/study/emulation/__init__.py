"""A cluster in memory behind the ports of a real one, and the gang experiment on it."""
