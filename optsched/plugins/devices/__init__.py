"""Plugins that match tasks to the devices of nodes: GPUs, NPUs, ResourceClaims and NUMA nodes."""
