"""Requests to an API server, its errors, and selections of objects."""
