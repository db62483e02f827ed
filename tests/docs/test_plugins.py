"""docs/plugins.md shows the same plugin and tests as the files that the page names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from optsched.plugin import View
from optsched.plugins.custom.extender import Verb
from optsched.plugins.custom.isolation import OWN_POINTS
from optsched.policy.load import parse_policy
from tests.support.pages import ROOT, fences

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "plugins.md"
EXAMPLES = ROOT / "instances" / "examples"


def test_the_plugin_and_the_policy_are_those_of_the_files() -> None:
    assert fences(PAGE, "python")[0] == (EXAMPLES / "plugins" / "maintenance.py").read_text()
    assert fences(PAGE, "python")[2] == (EXAMPLES / "plugins" / "per_node.py").read_text()
    assert fences(PAGE, "python")[3] == (EXAMPLES / "plugins" / "stage.py").read_text()
    confs = [(EXAMPLES / f"{name}.conf").read_text() for name in ("maintenance", "stage")]
    assert fences(PAGE, "yaml") == confs


def test_its_tests_run_and_pass(tmp_path: Path) -> None:
    (tmp_path / "maintenance.py").write_text(fences(PAGE, "python")[0])
    (tmp_path / "test_maintenance.py").write_text(fences(PAGE, "python")[4])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_what_an_action_sees_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    assert [f.name for f in fields(View) if f"`{f.name}`" not in text] == []


def test_every_extension_point_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8").replace("`explain", "`")
    assert [point for point in OWN_POINTS if f"`{point.removeprefix('explain')}" not in text] == []


def test_the_configuration_of_a_service_loads_and_every_verb_is_explained() -> None:
    page = ROOT / "docs" / "extender.md"
    (conf,) = fences(page, "yaml")
    policy = parse_policy(conf, "extender.conf")
    assert policy.warnings == ()
    text = page.read_text("utf-8")
    assert [verb for verb in Verb if f"`{verb}`" not in text] == []
