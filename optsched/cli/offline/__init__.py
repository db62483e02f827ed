"""Commands on files: solve an instance, replay traces, and report GPU hours."""
