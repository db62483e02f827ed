"""Admission of objects, for which `services.review` returns the response to a request.

Each kind has a module with its rules as small functions. No function waits, reads a clock or sends
a request to a server. Paths, rules and messages are Volcano's (pkg/webhooks/admission) unless a
comment says otherwise. `optsched.kube.webhook.server` answers HTTP requests with these reviews.
"""
