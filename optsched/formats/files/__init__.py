"""Files in general: YAML and JSON with positions, atomic writes, diagnostics, certificates."""
