"""The live cluster: the only room that speaks to an API server.

`client` carries requests, `watch` and `cache` turn what a server tells into snapshots, `binder`,
`status` and `events` carry out what a session decided, `lease` says who may, `server` shows how it
goes, and `scheduler` runs all of them.
"""
