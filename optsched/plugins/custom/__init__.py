"""Custom rules and actions: containment of their errors, and the interface of actions."""
