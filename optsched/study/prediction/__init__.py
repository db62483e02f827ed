"""Predictions for gangs: queue position, expected start, and the effects of hypothetical jobs."""
