"""Admission rules; `services.review` returns the response to an admission request.

Each Kubernetes kind, or family of kinds, has its own module, and each rule is a small function. The
functions do no I/O and do not read the current time. Webhook paths, rules and messages are the same
as in Volcano (pkg/webhooks/admission), unless a comment states a difference.
`optsched.kube.webhook.server` calls `services.review` for each HTTP request from the API server.
"""
