"""Encode a problem as a level model over nodes or configurations, and decode its solutions."""
