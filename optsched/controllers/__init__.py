"""Controllers: pure functions that return the writes that an object requires.

Each module handles one kind. `reconcile(obj, world) -> effects` depends only on the object and on
the other objects in `world`. The modules never wait, read a clock or contact a server.
`optsched.kube.controllers` carries out the effects.
"""
