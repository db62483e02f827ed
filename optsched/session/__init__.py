"""A session: from a snapshot to a verified plan. It acts on the outside only through its ports."""
