"""Commands that replay traces or read recorded snapshots: simulate, compare and gpu-hours."""
