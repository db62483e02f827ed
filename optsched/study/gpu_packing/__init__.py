"""Maximize the GPU allocation of pods with GPUs or GPU shares on nodes of a few classes."""
