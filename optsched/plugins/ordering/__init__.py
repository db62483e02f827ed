"""The order of gangs, and reservations for those that have waited for too long."""
