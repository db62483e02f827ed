"""Admission of objects: `review(path, request, world, settings) -> response`.

One module for each kind, its rules as small functions; nothing here waits, reads a clock or speaks
to a server. Paths, rules and sentences are Volcano's (pkg/webhooks/admission) unless a comment says
otherwise. `optsched.kube.webhook.server` serves it.
"""
