"""The cluster as domain values, kept up to date from watches."""
