"""Studies of scheduling: emulated clusters, generated workloads, comparisons of policies."""
