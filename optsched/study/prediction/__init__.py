"""Predictions for gangs: queue position, expected start, and effect of hypothetical jobs."""
