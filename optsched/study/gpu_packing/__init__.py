"""Allocate as many GPUs as possible to pods with GPUs or GPU shares, on a few classes of nodes."""
