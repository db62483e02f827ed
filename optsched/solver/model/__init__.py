"""Encode a problem as a level model by nodes or by configurations, and decode solutions."""
