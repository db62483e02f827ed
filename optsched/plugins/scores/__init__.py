"""Node scores: they fill nodes, spread pods or balance the use of resources."""
