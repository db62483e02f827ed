"""Victims: which pods may be evicted or moved, for which gangs, and which victims are needed."""
