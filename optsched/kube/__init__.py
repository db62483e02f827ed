"""The live cluster: the only package that speaks to an API server.

`client` sends requests, `reflector` lists and watches, `cache` turns watched objects into
snapshots, `scheduler`, `controllers` and `webhook` are the three processes, `serving` shows their
health and metrics, and `runtime` holds what they share.
"""
