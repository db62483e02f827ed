"""Volumes and data sets: where claims can be bound, how many attach, how full they may be."""
