"""Commands on traces and recorded snapshots: simulate, compare and gpu-hours."""
