"""Node scores that fill nodes, spread pods or balance the usage of resources."""
