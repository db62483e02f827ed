"""Tests of the subgroups of gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.topology import SubGroupRule, TopologyRequest
from optsched.problem.shapes import NO_PART, Part, gang_row
from tests.support.small import gang, running, shape

RACK = TopologyRequest(highest_tier=1)


def parted(name: str, parts: str, rule: SubGroupRule, least: int | None = None, on: str = ""):
    """Return a gang with one task per letter, which names its subgroup.

    A dot means no subgroup. `on` lists the letters whose tasks run, the first ones on n0.
    """
    made = gang(name, ("w", len(parts), shape(1)), least=least)
    tasks = tuple(
        replace(t, labels={} if part == "." else {"part": part})
        for t, part in zip(made.tasks, parts, strict=True)
    )
    tasks = tuple(running(t, "n0") if t.labels.get("part", ".") in on else t for t in tasks)
    return replace(made, tasks=tasks, sub_groups=(rule,))


def test_tasks_are_told_apart_by_their_group() -> None:
    row = gang_row(parted("g", "aab.", SubGroupRule("r", keys=("part",), topology=RACK)))
    assert row.shape is not None
    assert [(e.part, e.count) for e in row.shape.entries] == [(0, 2), (1, 1), (NO_PART, 1)]
    assert row.shape.parts == (Part(0, 1, RACK), Part(0, 1, RACK))


def test_names_of_groups_do_not_matter() -> None:
    rule = SubGroupRule("r", size=2, keys=("part",))
    one, other = gang_row(parted("g", "aabb", rule)), gang_row(parted("h", "xxyy", rule))
    assert one.shape == other.shape
    assert hash(one.shape) == hash(other.shape)
    assert gang_row(parted("i", "abab", rule)).shape != one.shape


def test_a_group_that_lacks_pods_waits_and_the_others_do_not() -> None:
    rule = SubGroupRule("r", size=2, keys=("part",))
    row = gang_row(parted("g", "aab", rule, least=1))
    assert [t.key for t in row.pending] == ["ns/g-w-0", "ns/g-w-1"]


def test_a_gang_knows_that_its_groups_lack_pods() -> None:
    row = gang_row(parted("g", "aab", SubGroupRule("r", size=2, keys=("part",))))
    assert row.blocked is not None
    assert row.blocked.code is ReasonCode.NOT_ENOUGH_TASKS
    assert row.blocked.message == "subgroup r-b needs 2 pods, but only 1 exist"


@pytest.mark.parametrize(("on", "need"), [("", 2), ("a", 0)])
def test_what_runs_counts(on: str, need: int) -> None:
    rule = SubGroupRule("r", size=2, min_groups=2, keys=("part",), topology=RACK)
    made = parted("g", "aaabb", rule, least=2)
    kept = [t if i < 3 else replace(t) for i, t in enumerate(made.tasks)]
    if on:
        kept = [running(t, f"n{i}") if i < 2 else t for i, t in enumerate(kept)]
    row = gang_row(replace(made, tasks=tuple(kept)))
    assert row.shape is not None
    first = row.shape.parts[0]
    assert (first.need, first.held) == (need, ("n0", "n1") if on else ())
    assert row.shape.need_groups == ((0, 1 if on else 2),)
    assert not row.shape.is_started


def test_too_few_groups_block_the_gang() -> None:
    rule = SubGroupRule("tp", size=2, min_groups=3, keys=("part",))
    row = gang_row(parted("g", "aabb", rule, least=0))
    assert row.blocked is not None
    assert row.blocked.message == (
        "subGroupPolicy tp needs 3 groups of 2 pods, but pods exist for 2 only"
    )


def test_without_rules_there_are_no_parts() -> None:
    row = gang_row(gang("g", ("w", 2, shape(1))))
    assert row.shape is not None
    assert row.shape.parts == ()
    assert {e.part for e in row.shape.entries} == {NO_PART}
