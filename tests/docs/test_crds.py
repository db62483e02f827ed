"""docs/crds.md is generated from the CRDs in deploy/crds."""

from __future__ import annotations

import re

from optsched.cli.kind_reference import kinds_page
from optsched.formats.files.yaml_text import Document, read_yaml
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "crds.md").read_text("utf-8")
FILES = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))


def test_the_page_is_written_by_the_code() -> None:
    assert kinds_page() == PAGE, "run python -m optsched.cli.kind_reference > docs/crds.md"


def test_every_kind_has_a_section_with_its_fields() -> None:
    for file in FILES:
        (part,) = [p for p in read_yaml(file.read_text("utf-8")) if isinstance(p, Document)]
        assert isinstance(part.value, dict)
        spec = part.value["spec"]
        section = PAGE.split(f"\n## {spec['names']['kind']}\n")[1].split("\n## ")[0]
        shown = re.findall(r"^\| `([^`]+)` \|", section, re.M)
        fields = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        for name in set(fields) - {"apiVersion", "kind", "metadata"}:
            inner = {f"{name}.{each}" for each in fields[name].get("properties", {})}
            is_job = "It has the same fields as the `spec` of a [Job](#job)." in section
            assert {name} | (set() if is_job else inner) <= set(shown), file.name


def test_defaults_and_choices_are_those_of_the_definition() -> None:
    assert "| `spec.weight` | integer | `1` | " in PAGE
    assert re.search(
        r"`spec\.dequeueStrategy` \| string \| `traverse` \| .*`fifo`, `traverse`", PAGE
    )
