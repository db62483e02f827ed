"""HTML reports: each is rendered from values to one self-contained page."""
