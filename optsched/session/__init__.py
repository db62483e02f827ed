"""A session, which turns a snapshot into a verified plan; all its I/O goes through ports."""
