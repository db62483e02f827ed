"""File utilities: YAML and JSON with positions, atomic writes, diagnostics, certificates."""
