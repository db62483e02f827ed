"""Between objects, files and traces on one side and domain values on the other, both ways.

`pods`, `nodes`, `volumes` and `groups` read one object each; `snapshot` puts a cluster together;
`instances` and `openb` read files; `encode` and `plan` write. Nothing here asks an API server or
decides anything, and no unreadable object takes another one with it.
"""
