"""Models compared on the same traces: a grid of replays, and paired differences of figures."""
