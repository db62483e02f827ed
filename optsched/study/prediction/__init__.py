"""Predictions for gangs: queue position, expected start, and effects of hypothetical jobs."""
