"""HTML reports, each rendered as one self-contained page."""
