"""The cluster's state as domain values, kept up to date by watches."""
