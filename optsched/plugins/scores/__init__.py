"""Node scores that fill nodes, spread pods or balance the use of resources."""
