"""The live scheduler: its loop, and what carries out and reports its decisions."""
