"""Declarative scheduling models and the mathematics of each rule, shipped as data."""
