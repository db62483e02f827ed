"""docs/threats.md names every right of the components, and existing tests."""

from __future__ import annotations

import re
from typing import Any

import pytest

from optsched.formats.files.yaml_text import Document, read_yaml
from tests.docs.test_compatibility import functions_of
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "threats.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| (scheduler|controllers|webhook) \|", line)
]
READING = {"get", "list", "watch"}


def roles(component: str) -> list[dict[str, Any]]:
    """Return all roles of a component, including the roles of features."""
    files = sorted((ROOT / "deploy" / "manifests").glob(f"{component}-*rbac.yaml"))
    texts = [file.read_text("utf-8") for file in files]
    parts = [part.value for text in texts for part in read_yaml(text) if isinstance(part, Document)]
    return [part for part in parts if isinstance(part, dict) and part["kind"].endswith("Role")]


@pytest.mark.parametrize("component", ["scheduler", "controllers", "webhook"])
def test_every_right_to_write_has_a_row(component: str) -> None:
    explained = {
        (verb, resource)
        for name, verbs, resources, *_ in ROWS
        if name == component
        for verb in verbs.split(", ")
        for resource in resources.split(", ")
    }
    rights = {
        (verb, resource)
        for role in roles(component)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if verb not in READING or resource == "secrets"
    }
    assert rights
    assert rights - explained == set()


def test_tests_exist() -> None:
    names = re.findall(r"`(tests/[^`]+::[^`]+)`", PAGE)
    assert names
    for name in names:
        path, _, function = name.partition("::")
        assert function in functions_of(path), name
