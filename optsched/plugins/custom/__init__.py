"""Custom plugins and actions: isolation of their errors, and the interface of actions."""
