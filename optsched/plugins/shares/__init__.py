"""Shares of queues: fair shares, guarantees, ceilings, hierarchies and usage over time."""
