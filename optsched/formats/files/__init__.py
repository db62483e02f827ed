"""File utilities: YAML and JSON with line numbers, atomic writes, diagnostics, certificates."""
