"""Lists and watches of one kind, and the objects that they keep up to date."""
