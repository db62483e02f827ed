"""The live scheduler: a loop makes plans, and other modules execute and report them."""
