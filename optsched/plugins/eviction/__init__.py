"""Victims: which pods may be evicted or moved, for which gang, and what eviction must achieve."""
