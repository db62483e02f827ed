"""Live clusters: only this package sends requests to an API server.

`client` sends requests. `cache` lists and watches objects and builds snapshots. `scheduler`,
`controllers` and `webhook` are the three processes. `serving` serves health checks and metrics, and
`runtime` has clocks, queues, events and leader election.
"""
