"""Controllers: pure functions that return the writes that an object requires.

Each module handles one kind. The result of `reconcile(obj, world)` depends only on `obj` and on the
other objects in `world`. Controllers never wait, read a clock or contact a server.
`optsched.kube.controllers` executes the returned effects.
"""
