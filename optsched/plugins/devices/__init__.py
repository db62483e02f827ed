"""Plugins that match tasks to devices of nodes: GPUs, NPUs, ResourceClaims and NUMA nodes."""
