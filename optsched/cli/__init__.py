"""The command line: arguments, composition, printing, exit codes."""
