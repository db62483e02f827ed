"""A batch scheduler for Kubernetes that decides each session as one optimisation problem."""

__version__ = "0.1.0"
