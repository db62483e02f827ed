"""Fuzz every parser of external texts and objects with mutated real inputs."""
