"""Level models of a problem, node by node or by configurations, and the way back to decisions."""
