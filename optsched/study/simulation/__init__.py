"""Simulation: replay traces in virtual time, with the same sessions as the live scheduler."""
