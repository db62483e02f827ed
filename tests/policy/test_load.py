from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optsched.policy import PolicyError, SolverKind, load_policy, shipped_models

CONF = "actions: allocate\ntiers: [{plugins: [{name: gang}]}]\n"


def refuse(path: Path) -> str:
    raise AssertionError(f"{path} was read")


def problem(name: str, text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(name, lambda _: text)
    return str(caught.value)


def test_shipped_models_load_without_errors() -> None:
    models = shipped_models()
    assert [m.name for m in models] == [
        "capacity-hierarchical",
        "crater",
        "drf-lexicographic",
        "finish-time-fair",
        "max-throughput",
        "min-fragmentation",
        "shortest-remaining",
        "topology-first",
        "volcano-compatible",
        "volcano-default",
    ]
    for name, meaning in models:
        policy = load_policy(name, refuse)
        assert (policy.name, policy.source) == (name, f"model {name}")
        assert policy.meaning == meaning != ""
        assert policy.warnings == ()


def test_volcano_models_differ_in_the_solver_and_in_what_is_lent() -> None:
    default, compatible = (
        load_policy(name, refuse) for name in ("volcano-default", "volcano-compatible")
    )
    assert (default.solver, compatible.solver) == (SolverKind.CPSAT, SolverKind.NONE)
    assert default.actions == compatible.actions
    differing = [
        (mine, other)
        for mine, other in zip(sum(default.tiers, ()), sum(compatible.tiers, ()), strict=True)
        if mine != other
    ]
    assert [replace(mine, arguments=()) for mine, _ in differing] == [
        other for _, other in differing
    ]
    assert [dict(mine.arguments) for mine, _ in differing] == [
        {"overcommit.keepShares": True},
        {"proportion.lendIdle": True},
    ]
    assert default.levels == compatible.levels


def test_files_are_told_by_their_content(tmp_path: Path) -> None:
    for name in ("a.conf", "max-throughput"):
        path = tmp_path / name
        path.write_text(CONF)
        assert load_policy(str(path), Path.read_text).name == name
    model = Path("models/volcano-default.yaml")
    if model.exists():
        assert load_policy(str(model), Path.read_text).source == str(model)


def test_names_that_are_nothing_list_what_there_is(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    with pytest.raises(PolicyError) as caught:
        load_policy(missing, Path.read_text)
    assert str(caught.value).startswith(f"{missing}: there is no such model or file; the ship")
    with pytest.raises(PolicyError, match="did you mean `volcano-default`"):
        load_policy("volcano-defualt", Path.read_text)


def test_files_that_can_not_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: Is a directory"):
        load_policy(str(tmp_path), Path.read_text)
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(PolicyError, match="is not UTF-8 text"):
        load_policy(str(path), lambda p: p.read_text("utf-8"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Job\n", "x.yaml:1:7: kind: kind Job is neither a model (kind: Model) nor a"),
        ("a: b\n", "x.yaml:1:1: is neither a model (kind: Model) nor a configuration of Volcano"),
        ("", "x.yaml:1:1: is neither a model"),
        ("- a\n", "x.yaml:1:1: is neither a model"),
        ("kind: ConfigMap\ndata: {}\n", "is a ConfigMap; the policy is the value of one of"),
        ("kind: Queue\nactions: x\n", "kind Queue is neither"),
        ("apiVersion: optsched.io/v2\n", 'there is no version "optsched.io/v2"'),
        ("actions: [\n", "not YAML"),
    ],
)
def test_other_files_are_refused(text: str, words: str) -> None:
    assert words in problem("x.yaml", text)
