"""Node scores: fill, spread or balance the use of resources."""
