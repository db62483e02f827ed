"""Shares of queues: fair shares, guarantees, capabilities, hierarchies and usage over time."""
