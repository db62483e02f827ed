"""Code shared by commands: options, paths, console, exit codes, connection to a cluster."""
