"""A session, which turns a snapshot into a verified plan; it does I/O only through interfaces."""
