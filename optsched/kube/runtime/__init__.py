"""What the three processes share: leader election, work queues, backoff, events, shutdown."""
