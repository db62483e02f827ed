"""Caches of cluster objects; watches keep these caches up to date."""
