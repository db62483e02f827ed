"""The scenarios that optsched does not meet, with a reason for each mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optsched.policy.diagnostic import Findings
from optsched.policy.located import read_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

MODES = ("pipeline", "optimising")
FILE = Path(__file__).with_name("exceptions.yaml")
LATER = "not implemented yet: "
BY_DESIGN = "by design: "


def read_exceptions() -> Mapping[str, Mapping[str, str]]:
    """Return the reasons of each scenario, by scenario id and then by mode.

    A duplicate key is an error.
    """
    findings = Findings()
    root = read_tree(FILE.read_text("utf-8"), FILE.name, findings)
    findings.raise_errors()
    assert root is not None
    return {
        name: {mode: reason.node.value for mode, reason in modes.node.value.items()}
        for name, modes in (root.value or {}).items()
    }
