"""Readers and writers of domain values: Kubernetes objects, snapshots, traces, plans and results.

`codec` has one reader and writer per kind. `snapshots` assembles a cluster from the domain values,
and reads files and folders. `traces` reads job traces. `plan` and `solve_result` are file formats
of optsched. `files` reads YAML and JSON with line numbers. No module of this package calls an API
server. An invalid object does not affect the other objects.
"""
