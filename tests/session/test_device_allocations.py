"""Tests of shared GPUs in plans: the GPUs of each task, and annotations for device plugins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.node_resources import GpuShare, GpuShareRequest
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import TaskShape
from optsched.formats.codec.gpu_shares import gpu_bind_annotations, read_gpu_shares
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.policy import parse_policy
from optsched.session.attempt import with_cards
from optsched.session.session import run_session
from tests.conformance.play import alone, solving
from tests.plugins.test_deviceshare import RULES, host, random_cards, shared_gpus, vgpu
from tests.support.effort import num_examples
from tests.support.engines import Bench
from tests.support.small import cluster, gang, node, running

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.session.session import SessionContext


@pytest.mark.parametrize("seed", range(num_examples(20)))
def test_what_is_dealt_is_what_was_asked_for_and_no_card_gives_more_than_it_has(seed: int) -> None:
    bench = Bench.of(random_cards(np.random.default_rng(seed)), RULES, ("admission", "tasks"))
    snapshot = bench.problem.snapshot
    actions = with_cards(snapshot, bench.actions(bench.improved().decisions), RULES)
    held = {
        n.name: dict(
            zip(
                (c.key for c in n.shared_gpus),
                DeviceShare(by_vgpu=True).resident_use(n),
                strict=True,
            )
        )
        for n in snapshot.nodes
    }
    task_of = {t.key: t for g in snapshot.gangs for t in g.tasks}
    used: dict[tuple[str, str], list[GpuShare]] = {}
    for action in (a for a in actions if isinstance(a, Allocate)):
        (asked,) = task_of[action.task].shape.shared_gpus
        assert len({u.key for u in action.shared_gpus}) == len(action.shared_gpus) == asked.number
        assert {u.cores for u in action.shared_gpus} == {asked.cores}
        for use in action.shared_gpus:
            used.setdefault((action.node, use.key), []).append(use)
    for (name, key), uses in used.items():
        (card,) = (c for c in snapshot.node_by_name[name].shared_gpus if c.key == key)
        before = held[name][key]
        assert before.memory + sum(u.memory for u in uses) <= card.memory
        assert before.cores + sum(u.cores for u in uses) <= 100
        assert before.number + len(uses) <= card.sharers


def test_every_container_gets_its_own() -> None:
    both = TaskShape(
        (("cpu", 100),), shared_gpus=(GpuShareRequest(2, 100), GpuShareRequest(1, 50, 0, 30))
    )
    bench = Bench.of(
        cluster([host("n", *shared_gpus(500, 500))], [gang("g", ("w", 1, both))]), RULES
    )
    actions = bench.actions(bench.greedy())
    (made,) = with_cards(bench.problem.snapshot, actions, RULES)
    assert isinstance(made, Allocate)
    assert made.shared_gpus == (
        GpuShare("GPU-1", 100),
        GpuShare("GPU-0", 100),
        GpuShare("GPU-1", 50, 30, container=1),
    )
    told = gpu_bind_annotations(made.shared_gpus, "n", 5_000)
    assert told["volcano.sh/vgpu-ids-new"] == (
        "GPU-1,NVIDIA,100,0:GPU-0,NVIDIA,100,0:;GPU-1,NVIDIA,50,30:"
    )
    assert told["volcano.sh/devices-to-allocate"] == told["volcano.sh/vgpu-ids-new"]
    assert (told["volcano.sh/vgpu-node"], told["volcano.sh/bind-phase"]) == ("n", "allocating")
    assert told["volcano.sh/vgpu-time"] == told["volcano.sh/bind-time"] == "5"
    assert read_gpu_shares(told, (), []) == made.shared_gpus


def test_numbered_cards_are_told_by_number() -> None:
    assert gpu_bind_annotations((GpuShare("0", 512), GpuShare("2", 512)), "n", 7) == {
        "volcano.sh/gpu-index": "0,2",
        "volcano.sh/predicate-time": "7000000",
    }
    assert gpu_bind_annotations((), "n", 7) == {}


def test_without_the_plugin_actions_stay_as_they_are() -> None:
    rules = RuleSet.of(Gang())
    bench = Bench.of(cluster([host("n", *shared_gpus(500))], [gang("g", ("w", 1, vgpu()))]), rules)
    actions = bench.actions(bench.greedy())
    assert with_cards(bench.problem.snapshot, actions, rules) is actions


# --- victims -------------------------------------------------------------------------------------

CARDS_POLICY = """actions: enqueue, allocate, preempt, backfill
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: predicates
  - name: deviceshare
    arguments: {deviceshare.VGPUEnable: true}
"""
MEMORY = "volcano.sh/vgpu-memory"


def asking(memory: int) -> TaskShape:
    request = (("cpu", 100), (MEMORY, memory))
    return TaskShape(request, shared_gpus=(GpuShareRequest(1, memory),))


def crowded() -> Snapshot:
    """Return two GPUs with a low-priority task each, and a task that requests a whole GPU."""
    low = gang("low", ("w", 2, asking(600)), least=1, priority=1)
    tasks = tuple(
        replace(running(t, "n"), shared_gpus=(GpuShare(f"GPU-{i}", 600),))
        for i, t in enumerate(low.tasks)
    )
    low = replace(low, tasks=tasks, phase=GangPhase.RUNNING)
    high = gang("high", ("w", 1, asking(900)), priority=5)
    made = node("n", 64, shared_gpus=shared_gpus(1000, 1000))
    offered = (("cpu", 64000), ("pods", 110), (MEMORY, 2000))
    return cluster([replace(made, allocatable=offered)], [low, high])


@pytest.mark.parametrize("around", [alone(), solving()], ids=["pipeline", "cp-sat"])
def test_victims_give_back_their_cards_in_the_session_that_evicts_them(
    around: SessionContext,
) -> None:
    report = run_session(crowded(), parse_policy(CARDS_POLICY, "shared_gpus.conf"), around)
    assert report.trace.violations == ()
    evicted = [a.task for a in report.plan.actions if isinstance(a, Evict)]
    assert len(evicted) == 1
    assert [(a.task, a.node) for a in report.plan.actions if isinstance(a, Nominate)] == [
        ("ns/high-w-0", "n")
    ]
    (leaves,) = evicted
    (card,) = next(t for g in crowded().gangs for t in g.tasks if t.key == leaves).shared_gpus
    assert card.memory == 600


def test_what_is_promised_of_cards_is_given_to_nobody_else() -> None:
    snapshot = crowded()
    late = gang("late", ("w", 1, asking(400)), priority=0)
    gangs = tuple(sorted((*snapshot.gangs, late), key=lambda g: g.key))
    for around in (alone(), solving()):
        policy = parse_policy(CARDS_POLICY, "shared_gpus.conf")
        report = run_session(replace(snapshot, gangs=gangs), policy, around)
        assert report.trace.violations == ()
        binds = [a for a in report.plan.actions if isinstance(a, Allocate)]
        gone = {a.task for a in report.plan.actions if isinstance(a, Evict)}
        kept = next(
            t.shared_gpus[0].key
            for g in gangs
            for t in g.tasks
            if t.shared_gpus and t.key not in gone
        )
        assert all(use.key == kept for a in binds for use in a.shared_gpus)


@pytest.mark.parametrize("victim", [0, 1])
def test_bound_pods_leave_the_gpu_of_each_possible_victim(victim: int) -> None:
    snapshot = crowded()
    late = gang("late", ("w", 1, asking(400)), priority=0)
    gangs = tuple(sorted((*snapshot.gangs, late), key=lambda g: g.key))
    policy = parse_policy(CARDS_POLICY, "shared_gpus.conf")
    actions = (
        Evict(f"ns/low-w-{victim}", "n", "preempt", "ns/high"),
        Allocate("ns/late-w-0", "n", "ns/late"),
        Nominate("ns/high-w-0", "n", "ns/high"),
    )
    made = with_cards(replace(snapshot, gangs=gangs), actions, policy.rules)
    (bind,) = (a for a in made if isinstance(a, Allocate))
    assert [use.key for use in bind.shared_gpus] == [f"GPU-{1 - victim}"]
