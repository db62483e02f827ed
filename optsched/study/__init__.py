"""Study: emulated clusters, generated workloads and comparisons of policies."""
