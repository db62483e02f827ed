"""Checks of the words and names in the source."""
