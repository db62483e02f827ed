"""The live scheduler: its loop, and the modules that execute plans and report about them."""
