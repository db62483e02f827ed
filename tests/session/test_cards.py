"""Shared GPUs in plans: which cards tasks get, and what device plugins are told."""

from __future__ import annotations

import numpy as np
import pytest

from optsched.domain.cards import CardRequest, CardUse
from optsched.domain.decisions import Allocate
from optsched.domain.task import TaskShape
from optsched.formats.cards import bind_marks, card_uses
from optsched.rules.deviceshare import DeviceShare
from optsched.rules.gang import Gang
from optsched.rules.ruleset import RuleSet
from optsched.session.cards import with_cards
from tests.rules.test_deviceshare import RULES, cards, host, random_cards, vgpu
from tests.support.effort import EFFORT
from tests.support.engines import Bench
from tests.support.small import cluster, gang


@pytest.mark.parametrize("seed", range(20 * EFFORT))
def test_what_is_dealt_is_what_was_asked_for_and_no_card_gives_more_than_it_has(seed: int) -> None:
    bench = Bench.of(random_cards(np.random.default_rng(seed)), RULES, ("admission", "tasks"))
    snapshot = bench.problem.snapshot
    actions = with_cards(snapshot, bench.actions(bench.improved().decisions), RULES)
    held = {
        n.name: dict(zip((c.key for c in n.cards), DeviceShare(by_vgpu=True).held(n), strict=True))
        for n in snapshot.nodes
    }
    task_of = {t.key: t for g in snapshot.gangs for t in g.tasks}
    used: dict[tuple[str, str], list[CardUse]] = {}
    for action in (a for a in actions if isinstance(a, Allocate)):
        (asked,) = task_of[action.task].shape.cards
        assert len({u.key for u in action.cards}) == len(action.cards) == asked.number
        assert {u.cores for u in action.cards} == {asked.cores}
        for use in action.cards:
            used.setdefault((action.node, use.key), []).append(use)
    for (node, key), uses in used.items():
        (card,) = (c for c in snapshot.node_by_name[node].cards if c.key == key)
        before = held[node][key]
        assert before.memory + sum(u.memory for u in uses) <= card.memory
        assert before.cores + sum(u.cores for u in uses) <= 100
        assert before.number + len(uses) <= card.sharers


def test_every_container_gets_its_own() -> None:
    both = TaskShape((("cpu", 100),), cards=(CardRequest(2, 100), CardRequest(1, 50, 0, 30)))
    bench = Bench.of(cluster([host("n", *cards(500, 500))], [gang("g", ("w", 1, both))]), RULES)
    actions = bench.actions(bench.greedy())
    (made,) = with_cards(bench.problem.snapshot, actions, RULES)
    assert isinstance(made, Allocate)
    assert made.cards == (
        CardUse("GPU-1", 100),
        CardUse("GPU-0", 100),
        CardUse("GPU-1", 50, 30, container=1),
    )
    told = bind_marks(made.cards, "n", 5_000)
    assert told["volcano.sh/vgpu-ids-new"] == (
        "GPU-1,NVIDIA,100,0:GPU-0,NVIDIA,100,0:;GPU-1,NVIDIA,50,30:"
    )
    assert told["volcano.sh/devices-to-allocate"] == told["volcano.sh/vgpu-ids-new"]
    assert (told["volcano.sh/vgpu-node"], told["volcano.sh/bind-phase"]) == ("n", "allocating")
    assert told["volcano.sh/vgpu-time"] == told["volcano.sh/bind-time"] == "5"
    assert card_uses(told, (), []) == made.cards


def test_numbered_cards_are_told_by_number() -> None:
    assert bind_marks((CardUse("0", 512), CardUse("2", 512)), "n", 7) == {
        "volcano.sh/gpu-index": "0,2",
        "volcano.sh/predicate-time": "7000000",
    }
    assert bind_marks((), "n", 7) == {}


def test_without_the_plugin_actions_stay_as_they_are() -> None:
    rules = RuleSet.of(Gang())
    bench = Bench.of(cluster([host("n", *cards(500))], [gang("g", ("w", 1, vgpu()))]), rules)
    actions = bench.actions(bench.greedy())
    assert with_cards(bench.problem.snapshot, actions, rules) is actions
