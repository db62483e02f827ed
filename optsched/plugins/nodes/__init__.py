"""Which nodes a task may use: capacity, taints, labels, ports, node groups, load and hours."""
