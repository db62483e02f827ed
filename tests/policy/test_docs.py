from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.plugins.faces import Face
from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.registry import ALIASES, PLUGINS
from optsched.policy import PolicyError, SolverKind, parse_policy, shipped_models
from optsched.policy.actions import ACTIONS
from optsched.policy.model import FIELDS
from optsched.policy.volcano import FIELDS as VOLCANO_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.plugins.registry import Argument

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


def rows() -> Iterator[str]:
    for model in shipped_models():
        yield f"| `{model.name}` | {model.meaning} |"
    for action in ACTIONS.values():
        yield f"| `{action.name}` | {action.meaning} |"
    for level in LEVELS.values():
        yield f"| `{level.name}` | {level.meaning} |"
    for plugin in PLUGINS.values():
        yield f"| `{plugin.name}` | {plugin.meaning} |"
        yield from (row(plugin.name, a) for a in flat(plugin.arguments))
    for action in ACTIONS.values():
        yield from (row(action.name, a) for a in flat(action.arguments))


def flat(arguments: Iterable[Argument]) -> Iterator[Argument]:
    """Arguments, those that a mapping holds with dotted names."""
    for argument in arguments:
        yield argument
        for inner in flat(argument.fields):
            yield replace(inner, name=f"{argument.name}.{inner.name}")


def row(owner: str, argument: Argument) -> str:
    default = str(argument.default)
    default = {"True": "true", "False": "false", "": "none"}.get(default, default)
    return f"| `{owner}` | `{argument.name}` | {default} | {argument.meaning} |"


@pytest.mark.parametrize("line", list(rows()))
def test_tables_say_what_the_code_says(line: str) -> None:
    assert TEXT.count(f"{line}\n") == 1


def test_every_name_is_mentioned() -> None:
    names = [*ALIASES, *FIELDS, *VOLCANO_FIELDS, *(f.value for f in Face)]
    flat = TEXT.replace("`admission.by`", "`admission`")
    assert [n for n in names if f"`{n}`" not in flat] == []
