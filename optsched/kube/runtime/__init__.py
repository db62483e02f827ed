"""Code shared by the three processes, such as leader election, work queues and events."""
