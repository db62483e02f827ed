"""Subgroups of gangs start as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.topology import SubGroupRule, TopologyRequest
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.gangs.gang import SubGroups
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.session.session_input import without_gangs
from tests.support.engines import Bench, binds, reason
from tests.support.small import cluster, gang, network, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot

RULES = RuleSet.of(GangRule(), SubGroups(), NetworkTopology())
RACK = TopologyRequest(highest_tier=1)


def parted(
    groups: str, size: int, min_groups: int = 0, least: int = 1, rack: TopologyRequest | None = None
) -> Gang:
    """Return a gang with one task of one CPU for each letter, which names its subgroup.

    The tasks of "." are in no subgroup.
    """
    made = gang("g", ("w", len(groups), shape(1)), least=least)
    rule = SubGroupRule("part", size=size, min_groups=min_groups, keys=("part",), topology=rack)
    tasks = tuple(
        t if letter == "." else replace(t, labels={"part": letter})
        for t, letter in zip(made.tasks, groups, strict=True)
    )
    return replace(made, tasks=tasks, sub_groups=(rule,))


def on(cpus: list[int], made: Gang) -> Snapshot:
    """Return nodes a0, a1, b2, b3, … in racks of two."""
    nodes = [node(f"{'abcdef'[i // 2]}{i}", cpu) for i, cpu in enumerate(cpus)]
    racks = [[n.name for n in nodes[i : i + 2]] for i in range(0, len(nodes), 2)]
    return replace(cluster(nodes, [made]), topology=network(*racks))


def started(snapshot: Snapshot) -> str:
    """Return the subgroups of the placed tasks; the node model must place equally many."""
    bench = Bench.of(snapshot, RULES, ("admission", "tasks"))
    greedy = bench.greedy()
    answer = bench.improved(greedy)
    assert bench.broken(greedy) == bench.broken(answer.decisions) == []
    assert answer.engine.startswith("greedy")
    found = binds(bench.actions(greedy))
    tasks = [t for t in snapshot.gangs[0].tasks if t.key in found]
    return "".join(sorted(t.labels.get("part", ".") for t in tasks))


@pytest.mark.parametrize(
    ("cpus", "made", "groups"),
    [
        ([4], parted("aabb", 2), "aabb"),
        ([3], parted("aabb", 2), "aa"),
        ([1], parted("aabb", 2), ""),
        ([3], parted("aabb.", 2), ".aa"),
        ([3], parted("aaabb", 2), "aaa"),
        ([3], parted("aabb", 2, min_groups=2), ""),
        ([4], parted("aabb", 2, min_groups=2), "aabb"),
        ([3], parted("aabb", 2, least=3), ""),
        ([4], parted("abb", 2), "bb"),
        ([2, 0, 2], parted("aabb", 2, rack=RACK), "aabb"),
        ([1, 1, 3], parted("aaabbb", 3, rack=RACK), "aaa"),
        ([2, 1, 2, 1], parted("aaabbb", 3, min_groups=2, rack=RACK), "aaabbb"),
    ],
)
def test_groups_start_whole(cpus: list[int], made: Gang, groups: str) -> None:
    assert started(on(cpus, made)) == groups


def test_running_tasks_count() -> None:
    made = parted("aabb", 2, min_groups=2)
    there = (*(running(t, "a0") for t in made.tasks[:3]), made.tasks[3])
    assert started(on([4], replace(made, tasks=there))) == "b"


@pytest.mark.parametrize(
    ("placed", "broken"), [("0 1", False), ("0", True), ("0 2", True), ("2 3", False)]
)
def test_the_verifier_counts_groups(placed: str, *, broken: bool) -> None:
    bench = Bench.of(on([4], parted("aabb", 2)), RULES)
    plan = {f"ns/g-w-{i}": "a0" for i in placed.split()}
    assert bench.broken(bench.decisions(plan)) == ["sub-groups"] * broken


def test_the_verifier_counts_how_many_groups() -> None:
    bench = Bench.of(on([4], parted("aabb", 2, min_groups=2)), RULES)
    plan = {f"ns/g-w-{i}": "a0" for i in range(2)}
    assert bench.broken(bench.decisions(plan)) == ["sub-groups"]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (parted("ab", 2), "subgroup part-a needs 2 pods, but only 1 exist"),
        (
            parted("aab", 2, min_groups=2),
            "subGroupPolicy part needs 2 groups of 2 pods, but pods exist for 1 only",
        ),
    ],
)
def test_gangs_are_told_what_groups_lack(made: Gang, text: str) -> None:
    assert text in reason(on([4], made), RULES, "g")


def test_without_gangs_there_are_no_groups() -> None:
    loose = without_gangs(on([1], parted("aabb", 2, min_groups=2)))
    bench = Bench.of(loose, RuleSet.of(NetworkTopology()))
    assert len(bench.actions(bench.greedy())) == 1
