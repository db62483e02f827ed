"""Tests of fairness over time in whole sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.amounts import Usage
from optsched.cluster.snapshot import Queue
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from optsched.policy.load import parse_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import GPU, cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot

CONF = """
actions: allocate
tiers:
- plugins: [{{name: priority}}, {{name: gang}}]
- plugins: [{{name: predicates}}, {{name: {plugin}, arguments: {{usage.halfLife: 1h}}{more}}}]
"""
PLUGINS = {
    "drf": CONF.format(plugin="drf", more=""),
    "tree": CONF.format(plugin="drf", more=", enableHierarchy: true"),
    "proportion": CONF.format(plugin="proportion", more=""),
    "capacity": CONF.format(plugin="capacity", more=""),
}
both_ways = pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])


def used(gpus: float, now_ms: int) -> Usage:
    """Return the usage of a queue that has always held the given GPUs, with an hour's half-life."""
    return Usage(((GPU, gpus * 3600 / np.log(2)),), now_ms)


def contest(number: int, **fields: object) -> Snapshot:
    """Return two queues, of which the first by name has a high recent usage."""
    queues = [Queue("a", **fields), Queue("b", **fields)]
    gangs = [gang(q.name, ("w", number, shape(1, 1)), least=0, queue=q.name) for q in queues]
    snapshot = cluster([node("n0", 8, gpu=1), node("n1", 8, gpu=1)], gangs, queues)
    return replace(snapshot, usage={"a": used(2, snapshot.taken_ms)})


def whole(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with gangs that start only as a whole."""
    gangs = tuple(replace(g, min_member=len(g.tasks), is_loose=False) for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def placed(snapshot: Snapshot, text: str, *, solver: bool) -> tuple[Counter[str], Plan]:
    policy = parse_policy(text, "x.conf")
    limits = Limits(budget_ms=None, num_workers=1)
    around = SessionContext(solver=InProcess() if solver else None, limits=limits)
    plan = run_session(snapshot, policy if solver else without_solver(policy), around).plan
    return Counter(task.split("/")[1].split("-")[0] for task in plan.binds), plan


@both_ways
@pytest.mark.parametrize("plugin", ["drf", "tree", "capacity"])
def test_who_has_used_much_waits_behind_who_has_used_little(plugin: str, solver: bool) -> None:
    found, plan = placed(contest(2), PLUGINS[plugin], solver=solver)
    assert found == {"b": 2}
    assert {s.queue: s.ideal for s in plan.certificate.shares} == {"a": 0, "b": 1_000_000}


@both_ways
@pytest.mark.parametrize("plugin", PLUGINS)
def test_of_one_place_that_is_left_who_has_used_little_gets_it(plugin: str, solver: bool) -> None:
    """With `proportion`, the queue order alone decides on the odd GPU, not the past usage."""
    snapshot = contest(1)
    one = replace(snapshot, nodes=snapshot.nodes[:1])
    entitled = "a" if plugin == "proportion" else "b"
    assert placed(one, PLUGINS[plugin], solver=solver)[0] == {entitled: 1}
    forgotten = replace(one, usage={})
    assert placed(forgotten, PLUGINS[plugin], solver=solver)[0] == {"a": 1}


@both_ways
@pytest.mark.parametrize("plugin", ["drf", "tree", "capacity"])
def test_so_it_is_with_whole_gangs(plugin: str, solver: bool) -> None:
    assert placed(whole(contest(2)), PLUGINS[plugin], solver=solver)[0] == {"b": 2}


@both_ways
def test_after_ten_half_lives_it_is_as_good_as_forgotten(solver: bool) -> None:
    later = replace(contest(2), taken_ms=contest(2).taken_ms + 36_000_000)
    assert placed(later, PLUGINS["drf"], solver=solver)[0] == {"a": 1, "b": 1}


@both_ways
def test_what_is_deserved_comes_before_what_was_used_in_the_optimising_session(
    solver: bool,
) -> None:
    found, _ = placed(contest(2, deserved=((GPU, 1),)), PLUGINS["capacity"], solver=solver)
    assert found == ({"a": 1, "b": 1} if solver else {"b": 2})


def test_a_dump_replays_to_the_same_plan() -> None:
    snapshot = contest(2)
    again = assemble(encode(snapshot)).snapshot
    assert again.usage == snapshot.usage
    first, second = (placed(s, PLUGINS["drf"], solver=True)[1] for s in (snapshot, again))
    assert first.actions == second.actions
