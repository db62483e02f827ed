"""Vector bin packing: bins filled greedily, columns generated, integers found, bounds proved."""
