"""Controllers: pure functions that return the writes that an object requires.

Each module handles one kind. `reconcile(obj, world) -> effects` depends only on `obj` and on the
other objects in `world`. The controllers never wait, read a clock or contact a server.
`optsched.kube.controllers` executes the effects.
"""
