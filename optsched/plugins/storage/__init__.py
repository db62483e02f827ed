"""Rules on volumes: where claims can be bound, attach limits of nodes, and volume utilization."""
