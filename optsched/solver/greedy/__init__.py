"""Volcano's action pipeline by classes: one vector of fits and scores per task class."""
