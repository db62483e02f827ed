"""GPU hours of queues and users, from replays or from a watched cluster."""
