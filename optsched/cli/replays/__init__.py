"""Commands on traces: simulate, compare and gpu-hours."""
