"""Rules on nodes: capacity, taints, labels, ports, node groups, measured load and opening hours."""
