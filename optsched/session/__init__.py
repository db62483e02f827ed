"""A session, which turns a snapshot into a verified plan and does all I/O by ports."""
