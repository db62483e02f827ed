"""Pods that share GPUs, on nodes of a few kinds: how much of the GPUs can be given out."""
