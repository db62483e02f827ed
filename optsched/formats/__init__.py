"""Readers and writers of Kubernetes objects, snapshots, traces, plans and results.

`codec` has one reader and writer per kind. `snapshots` assembles the snapshot of a cluster from
objects in a file, in a folder or on an API server. `traces` reads job traces. `plan` and
`solve_result` define optsched's own file formats. `files` reads YAML and JSON with line numbers.
No module of this package calls an API server. An invalid object does not affect other objects.
"""
