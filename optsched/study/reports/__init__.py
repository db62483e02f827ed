"""HTML reports, each a single self-contained file."""
