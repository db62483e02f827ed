"""Admission rules; `services.review` returns the response to a request.

Each kind has a module whose rules are small functions. No function waits, reads a clock or sends a
request. Paths, rules and messages are the same as in Volcano (pkg/webhooks/admission), unless a
comment states a difference. `optsched.kube.webhook.server` answers admission requests over HTTP
with these reviews.
"""
