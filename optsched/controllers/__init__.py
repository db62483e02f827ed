"""Controllers: pure functions that return the API writes needed to reconcile an object.

Each controller reconciles the objects of one kind. The result of `reconcile(obj, world)` depends
only on `obj` and on the other objects in `world`. Controllers do no I/O and read no clock.
`optsched.kube.controllers` executes the returned effects.
"""
