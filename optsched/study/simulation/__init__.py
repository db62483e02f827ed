"""Simulation: traces played on virtual time, decided by the very sessions of the live scheduler."""
