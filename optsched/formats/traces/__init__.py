"""Convert job traces in published formats to optsched's trace format."""
