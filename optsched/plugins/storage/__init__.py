"""Rules on volumes: claim binding, attach limits of nodes, and volume utilization."""
