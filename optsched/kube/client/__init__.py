"""Requests to an API server, their errors, and selections of objects in lists."""
