"""Live clusters: only this package sends requests to an API server.

`client` sends requests. `cache` lists and watches objects and builds snapshots. `scheduler`,
`controllers` and `webhook` contain the code of the three long-running processes. `serving` serves
health checks and metrics. `runtime` provides clocks, work queues, Kubernetes Events and leader
election.
"""
