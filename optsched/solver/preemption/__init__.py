"""Which gangs start, where, and which running tasks leave for them, as one model."""
