"""Requests to an API server, request errors, and selectors for list requests."""
