"""The live scheduler: its loop, and the modules that execute and report its plans."""
