"""Code shared by the three processes: leader election, queues, backoff, events, shutdown."""
