"""User code: isolation of custom plugins, custom actions, and the HTTP service `extender`."""
