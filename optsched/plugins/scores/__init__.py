"""Node scores that fill nodes, spread pods or balance resource usage."""
