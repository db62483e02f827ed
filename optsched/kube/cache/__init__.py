"""Caches of cluster objects, which watches keep up to date."""
