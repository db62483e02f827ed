"""The command line: arguments, wiring of components, output and exit codes."""
