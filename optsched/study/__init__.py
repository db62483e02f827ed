"""Studies: emulated clusters, generated workloads and comparisons of policies."""
