"""Explanations: why a gang waits."""
