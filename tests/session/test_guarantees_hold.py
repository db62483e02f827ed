"""A guarantee holds even if the pods of other queues are protected from eviction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from optsched.cluster.decisions import Evict
from optsched.cluster.snapshot import Queue
from optsched.plugins.eviction.victims import Victims
from optsched.plugins.verification.world import World
from optsched.units import CPU
from tests.session.test_victims import decide, evicted, runs
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot

HOUR_MS = 3_600_000
SHIELDS: dict[str, dict[str, Any]] = {
    "preemptable": {"preemptable": False},
    "cooldown": {"cooldown_ms": HOUR_MS, "started_ms": 1},
}


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def contest(asked: int, shield: dict[str, Any], least: int = 1, floor: int = 4) -> Snapshot:
    """Return a node full of protected pods of `lab`, and a gang of `team`.

    Half of the node is guaranteed to `team`.
    """
    holder = gang("holds", ("w", 8, shape(1)), least=least, queue="lab")
    holder = runs(holder, *["n"] * 8)
    holder = replace(holder, tasks=tuple(replace(t, **shield) for t in holder.tasks))
    asks = gang("asks", ("w", asked, shape(1)), queue="team")
    lab = Queue("lab", deserved=cpus(2))
    team = Queue("team", deserved=cpus(6), guarantee=cpus(floor) if floor else ())
    return cluster([node("n", 8)], [holder, asks], [lab, team], now_ms=10)


@pytest.mark.parametrize("shield", SHIELDS.values(), ids=list(SHIELDS))
@pytest.mark.parametrize("shares", ["capacity", "proportion"])
@pytest.mark.parametrize("solver", [True, False])
def test_what_victims_say_does_not_keep_a_queue_from_its_guarantee(
    shield: dict[str, Any], shares: str, *, solver: bool
) -> None:
    assert len(evicted(decide(contest(2, shield), shares, solver=solver))) == 2
    assert len(evicted(decide(contest(4, shield), shares, solver=solver))) == 4


@pytest.mark.parametrize("shield", SHIELDS.values(), ids=list(SHIELDS))
@pytest.mark.parametrize("solver", [True, False])
@pytest.mark.parametrize(("asked", "floor"), [(5, 4), (2, 0), (2, 1)])
def test_it_holds_against_claims_beyond_a_guarantee(
    shield: dict[str, Any], asked: int, floor: int, *, solver: bool
) -> None:
    assert evicted(decide(contest(asked, shield, floor=floor), solver=solver)) == []
    assert evicted(decide(contest(asked, {}, floor=floor), solver=solver)) != []


@pytest.mark.parametrize("shares", ["capacity", "proportion"])
@pytest.mark.parametrize("solver", [True, False])
def test_the_size_of_a_gang_does_not_keep_a_queue_from_its_guarantee(
    shares: str, *, solver: bool
) -> None:
    whole = decide(contest(2, {}, least=8), shares, solver=solver)
    assert len(evicted(whole)) == 8
    floorless = contest(2, {}, least=8, floor=0)
    assert len(evicted(decide(floorless, shares, solver=solver))) == 8
    # The queue of the victims exceeds its share until the gang leaves, so no guarantee is needed.
    # `team` deserves 6 CPUs with `capacity`, and 4 by its weight.
    beyond = decide(contest(5, {}, least=8), shares, solver=solver)
    assert len(evicted(beyond)) == (8 if shares == "capacity" else 0)
    lent = replace(floorless, queues=tuple(replace(q, deserved=cpus(8)) for q in floorless.queues))
    assert evicted(decide(lent, "capacity", solver=solver)) == []
    # The lender keeps its own guarantee.
    floors = contest(2, {}, least=8)
    lab = replace(floors.queue_by_name["lab"], guarantee=cpus(1))
    queues = tuple(lab if queue.name == "lab" else queue for queue in floors.queues)
    assert evicted(decide(replace(floors, queues=queues), shares, solver=solver)) == []


@pytest.mark.parametrize("solver", [True, False])
@pytest.mark.parametrize(
    ("asked", "floor", "victims"), [(3, 3, 3), (3, 2, 2), (6, 4, 4), (2, 0, 0)]
)
def test_pods_beyond_the_minimum_are_served_up_to_the_guarantee(
    asked: int, floor: int, victims: int, *, solver: bool
) -> None:
    """The queue of the victims holds no more than it deserves, so only the guarantee counts."""
    snapshot = contest(asked, {}, floor=floor)
    lab, team = (
        replace(snapshot.queue_by_name[name], deserved=cpus(8)) for name in ("lab", "team")
    )
    waits = gang("asks", ("w", asked, shape(1)), queue="team", least=1)
    gangs = tuple(waits if g.name == "asks" else g for g in snapshot.gangs)
    plan = decide(replace(snapshot, gangs=gangs, queues=(lab, team)), "capacity", solver=solver)
    assert len(evicted(plan)) == victims


def test_the_verifier_tells_claims_within_a_guarantee_from_others() -> None:
    shield = SHIELDS["preemptable"]
    placed = [a for a in decide(contest(2, shield)).actions if not isinstance(a, Evict)]

    def found(snapshot: Snapshot, action: str = "reclaim") -> list[str]:
        victims = [Evict(f"ns/holds-w-{i}", "n", action, "ns/asks") for i in range(2)]
        world = World(snapshot, (*victims, *placed))
        return sorted({v.detail for v in Victims().verify_evictions(world)})

    refusal = ["evicted, but is not preemptable"]
    assert found(contest(2, shield)) == []
    assert found(contest(2, shield), "preempt") == refusal
    assert found(contest(2, shield, floor=1)) == refusal
    assert found(contest(2, shield, floor=0)) == refusal
