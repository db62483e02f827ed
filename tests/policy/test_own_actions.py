"""Tests of custom actions: from files and entry points, with arguments, and unusable ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from optsched.cli.base.session_context import read_folder
from optsched.plugins.custom.proposals import Place
from optsched.policy import PolicyError, describe
from optsched.policy.catalogue import PluginSource
from optsched.policy.load import parse_policy

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
    from optsched.plugin import Action, Argument, Kind, Place

    def build(arguments):
        if not arguments["node"]:
            raise ValueError("no node")
        return lambda view: [Place("ns/a", arguments["node"])]

    ACTION = Action("stage", "places a", (Argument("node", Kind.TEXT, "n0", "which"),), build)
"""
CONF = """\
actions: "enqueue, stage, allocate"
tiers:
- plugins:
  - name: gang
"""
SAID = "configurations:\n- name: stage\n  arguments:\n    node: {}\n"
MODEL = """\
apiVersion: optsched.io/v1alpha1
kind: Model
name: lab
actions: [allocate, stage]
tiers:
- rules:
  - name: gang
levels: [admission]
"""


def shelf(folder: Path, text: str = GOOD) -> PluginSource:
    """Return a plugin folder with one file."""
    (folder / "stage.py").write_text(dedent(text))
    return PluginSource(folder, read_folder)


def told(found: PluginSource, conf: str = CONF) -> str:
    """Return the error about an unusable policy, without the folder."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(conf, "a.conf", found)
    return str(caught.value).replace(f"{found.folder}/", "")


def proposed(policy) -> list[Place]:
    """Return the proposals of the policy's only action."""
    (proposer,) = policy.proposers
    return proposer.propose(None)


def test_it_has_its_place_and_its_arguments(tmp_path: Path) -> None:
    policy = parse_policy(CONF, "a.conf", shelf(tmp_path))
    assert policy.actions == ("enqueue", "stage", "allocate")
    assert proposed(policy) == [Place("ns/a", "n0")]
    assert "enqueue, stage, allocate" in describe(policy)
    assert policy.warnings == ()
    policy = parse_policy(CONF + SAID.format("n7"), "a.conf", shelf(tmp_path))
    assert proposed(policy) == [Place("ns/a", "n7")]


def test_a_model_names_it_too(tmp_path: Path) -> None:
    policy = parse_policy(MODEL, "lab.yaml", shelf(tmp_path))
    assert policy.actions == ("allocate", "stage")
    assert proposed(policy) == [Place("ns/a", "n0")]


def test_nobody_who_does_not_name_it_has_it(tmp_path: Path) -> None:
    policy = parse_policy(CONF.replace("stage, ", ""), "a.conf", shelf(tmp_path))
    assert policy.proposers == ()


def test_arguments_are_checked(tmp_path: Path) -> None:
    found = shelf(tmp_path)
    assert "action stage has no such argument" in told(found, CONF + SAID.replace("node", "noda"))
    assert "did you mean `stage`?" in told(found, CONF.replace("stage", "stag"))
    text = told(found, CONF + SAID.format('""'))
    assert "a.conf:1:20" in text
    assert "does not accept these arguments: ValueError: no node" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACTION = 3", "1:1: ACTION is of type int; write `ACTION = Action("),
        (GOOD.replace('"stage"', '"Stage"'), "cannot be called 'Stage'"),
        (GOOD.replace('"stage"', '"reclaim"'), "reclaim is taken by a built-in action"),
        (GOOD.replace('"places a"', '""'), "an action needs a meaning"),
        (
            GOOD.replace(", build)", ", 3)"),
            "build must be a function from arguments to a function",
        ),
        (GOOD.replace("return lambda view: ", "return "), "build returned list, not a function"),
        (GOOD + "\n    PLUGIN = 3", "PLUGIN is of type int"),
        ("X = 1", "defines no PLUGIN"),
    ],
)
def test_what_can_not_be_used_is_told(tmp_path: Path, text: str, message: str) -> None:
    assert message in told(shelf(tmp_path, text))


def test_an_entry_point_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_stage.py").write_text(dedent(GOOD))
    monkeypatch.syspath_prepend(tmp_path)
    entries = [
        EntryPoint("stage", "lab_stage:ACTION", "optsched.actions"),
        EntryPoint("other", "lab_stage:ACTION", "optsched.actions"),
        EntryPoint("gone", "lab_gone:ACTION", "optsched.actions"),
        EntryPoint("reclaim", "lab_stage:ACTION", "optsched.actions"),
    ]
    found = PluginSource(None, read_folder, (), entries)
    policy = parse_policy(CONF, "a.conf", found)
    assert proposed(policy) == [Place("ns/a", "n0")]
    (warning,) = policy.warnings
    assert "reclaim = lab_stage:ACTION is ignored: an action of optsched" in str(warning)
    assert "calls itself stage" in told(found, CONF.replace("stage", "other"))
    assert "cannot be loaded: ModuleNotFoundError" in told(found, CONF.replace("stage", "gone"))
