"""Volumes: where claims can be bound, how many volumes a node can attach, how full they get."""
