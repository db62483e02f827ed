"""Custom code: the isolation of custom plugins, custom actions, and the plugin `extender`."""
