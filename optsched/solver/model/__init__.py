"""Encode a problem as a level model, node by node or by configurations, and decode solutions."""
