"""Shared code of the three processes: leader election, queues, backoff, events, shutdown."""
