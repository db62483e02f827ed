"""The cluster's state as domain objects, kept up to date by watches."""
