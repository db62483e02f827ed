"""Readers of job traces, in published formats and in optsched's own."""
