from __future__ import annotations

import re
from pathlib import Path

import pytest

from optsched.cli.plugin_reference import format_configuration
from optsched.plugins.extension_points import Switch
from optsched.plugins.registry import ALIASES
from optsched.policy import PolicyError, SolverKind, parse_policy
from optsched.policy.policy_formats import MODEL_FIELDS, VOLCANO_FIELDS

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)
EXAMPLES = [text for kind, text in BLOCKS if kind == "yaml"]


def test_examples_load() -> None:
    model, volcano, _ = EXAMPLES
    lab = parse_policy(model, "lab.yaml")
    assert (lab.name, lab.solver, lab.warnings) == ("lab", SolverKind.CPSAT, ())
    conf = parse_policy(volcano, "volcano-scheduler.conf")
    assert conf.warnings == ()


def test_the_example_of_mistakes_is_what_is_printed() -> None:
    (shown,) = [text for kind, text in BLOCKS if kind == "text"]
    with pytest.raises(PolicyError) as caught:
        parse_policy(EXAMPLES[-1], "scheduler.conf")
    assert shown == f"{caught.value}\n"


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    exec(code, {})
    assert capsys.readouterr().out.startswith("volcano-default (model volcano-default)\n")


def test_tables_say_what_the_code_says() -> None:
    assert "| `gang` | gangs start together or not at all |\n" in TEXT
    assert format_configuration(TEXT) == TEXT, "run python -m optsched.cli.plugin_reference"


def test_every_name_is_mentioned() -> None:
    names = [*ALIASES, *MODEL_FIELDS, *VOLCANO_FIELDS, *(f.value for f in Switch)]
    flat = TEXT.replace("`admission.by`", "`admission`")
    assert [n for n in names if f"`{n}`" not in flat] == []
