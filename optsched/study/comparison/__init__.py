"""Compare models on the same traces: a grid of replays, and paired differences of metrics."""
