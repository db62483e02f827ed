"""Run the actions of a policy greedily, as Volcano does, without a solver."""
