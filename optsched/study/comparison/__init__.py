"""Replay the same traces under several models, and compare the metrics of pairs of replays."""
