"""The live cluster: the only room that speaks to an API server.

`client` carries requests, `watch` and `cache` turn what a server tells into snapshots, `binder`,
`status` and `events` carry out what a session decided, `lease` says who may, `server` shows how it
goes, and `scheduler` runs all of them. `controllers` does the same for `optsched.controllers`, with
`store` for what they see, `workqueue` for what is to be looked at and `effects` for what they want.
"""
