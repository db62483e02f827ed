"""Rules on the nodes of a task: capacity, taints, labels, ports, node groups, load and hours."""
