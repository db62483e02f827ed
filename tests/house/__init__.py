"""What keeps the source readable: words, names and their numbers."""
