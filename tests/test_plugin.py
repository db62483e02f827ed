"""The plugin of docs/plugins.md satisfies the contract of every rule."""

from __future__ import annotations

import importlib.util
import sys

from optsched.testing import RuleContract
from tests.support.pages import ROOT

PATH = ROOT / "instances" / "examples" / "plugins" / "maintenance.py"


def load_example():
    """Return the example as a module."""
    if "maintenance_example" not in sys.modules:
        spec = importlib.util.spec_from_file_location("maintenance_example", PATH)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules["maintenance_example"]


class TestMaintenance(RuleContract):
    rule = load_example().Maintenance()
    node_labels = ({"lab.example/repair": "yes"}, {"lab.example/power": "green"})
