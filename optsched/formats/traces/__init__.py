"""Job traces in the formats in which others published them, as traces of ours."""
