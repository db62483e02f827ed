"""Admission of objects: `review(service, request, world, settings)` returns the response.

Each kind has a module with its rules as small functions. No function waits, reads a clock or sends
a request to a server. Paths, rules and messages are Volcano's (pkg/webhooks/admission) unless a
comment says otherwise. `optsched.kube.webhook.server` answers requests with these reviews.
"""
