"""GPUs, NPUs, device claims and NUMA nodes: which tasks the devices of a node can take."""
