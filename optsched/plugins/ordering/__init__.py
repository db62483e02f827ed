"""The order of gangs, and reservations for gangs that have waited too long."""
