"""Commands on a live cluster: objects, explanations, predictions and snapshots."""
