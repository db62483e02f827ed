"""Rules on nodes: capacity, affinity, taints, host ports, node groups, measured load and zones."""
