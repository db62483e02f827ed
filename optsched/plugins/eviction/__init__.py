"""Victims: which pods may be evicted or moved, for which gang, and when an eviction is useful."""
