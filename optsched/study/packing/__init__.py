"""Vector bin packing by greedy filling, column generation and integer programs, with bounds."""
