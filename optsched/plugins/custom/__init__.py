"""Custom plugins and actions: isolation of errors, and the interface of custom actions."""
