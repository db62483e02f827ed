"""Rules on volumes: claims, zones of volumes, attach limits of nodes, and utilization scores."""
