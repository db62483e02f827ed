"""Predictions for gangs: place in the queue, expected start, effect of jobs not yet submitted."""
