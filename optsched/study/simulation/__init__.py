"""Simulation: traces replayed in virtual time with the sessions of the live scheduler."""
