"""Extenders: HTTP services that filter, score, order and vote."""
