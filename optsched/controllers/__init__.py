"""Effects that the objects of users need: `reconcile(obj, world) -> effects`.

Every module decides for one kind, as a function of the object and of the other objects; nothing
here waits, reads a clock or speaks to a server. `optsched.kube.controllers` carries effects out.
"""
