"""Plugins for GPUs, NPUs, ResourceClaims and NUMA nodes, which match tasks to node devices."""
