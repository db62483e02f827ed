"""The built-in plugins by name, collected from the modules that declare them.

Every `Plugin` object at the top level of a module in `_PACKAGES` is a built-in plugin.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from optsched.plugins.declaration import Plugin

_PACKAGES = (
    *("custom", "devices", "eviction", "gangs", "nodes"),
    *("ordering", "scores", "shares", "storage", "topology"),
)


def _find_plugins() -> dict[str, Plugin]:
    found: list[Plugin] = []
    for name in _PACKAGES:
        package = import_module(f"optsched.plugins.{name}")
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            declared = vars(import_module(module.name)).values()
            found += [value for value in declared if isinstance(value, Plugin)]
    return {plugin.name: plugin for plugin in sorted(found, key=lambda p: p.name)}


PLUGINS: dict[str, Plugin] = _find_plugins()

ALIASES = {alias: plugin.name for plugin in PLUGINS.values() for alias in plugin.aliases}
"""Alternative plugin names from Volcano's documentation, such as `numaaware`."""

JOB_PLUGINS = ("svc", "ssh", "env", "tensorflow", "pytorch", "mpi", "ray", "hcclrank")
"""Plugins of the job controller, which users may list as scheduler plugins by mistake."""
