"""Code that commands share: options, paths, console, exit codes, connection to a cluster."""
