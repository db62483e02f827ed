"""Simulation: replay traces in virtual time with the sessions of the live scheduler."""
