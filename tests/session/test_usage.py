"""The usage of queues persists from session to session, and over restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.amounts import Usage
from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.session.usage import WRITTEN_EVERY_MS, UsageKeeper
from tests.support.sizes import container_sizes
from tests.support.small import GPU, cluster, gang, node, running, shape

HOUR = 3_600_000
NEVER = 0


def busy(number: int) -> Gang:
    made = gang("g", ("w", number, shape(1, 1)), least=0, queue="q")
    return replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))


def at(now_ms: int, *gangs: Gang, **usage: Usage) -> Snapshot:
    return replace(cluster([node("n0", 8, gpu=8)], gangs, [Queue("q")], now_ms), usage=usage)


def gpus(snapshot: Snapshot) -> float:
    return dict(snapshot.usage["q"].seconds).get(GPU, 0.0)


def test_what_was_held_until_a_snapshot_counts_in_it():
    keeper, held = UsageKeeper(), busy(4)
    assert gpus(keeper.noted(at(0, held), HOUR)) == 0
    first = keeper.noted(at(10_000, held), HOUR)
    assert gpus(first) == pytest.approx(40, rel=1e-2)
    later = keeper.noted(at(20_000), HOUR)
    assert gpus(later) == pytest.approx(80, rel=1e-2), "it was held until now"
    assert gpus(keeper.noted(at(20_000 + HOUR), HOUR)) == pytest.approx(gpus(later) / 2)


def test_however_often_one_looks_it_is_the_same():
    often, seldom, held = UsageKeeper(), UsageKeeper(), busy(4)
    for now_ms in range(0, 100_001, 1_000):
        last = often.noted(at(now_ms, held), HOUR)
    seldom.noted(at(0, held), HOUR)
    assert gpus(last) == pytest.approx(gpus(seldom.noted(at(100_000, held), HOUR)))


def test_without_a_half_life_nothing_is_kept_and_nothing_written():
    keeper, snapshot = UsageKeeper(), at(0, busy(4), q=Usage(((GPU, 5.0),), 0))
    assert keeper.noted(snapshot, NEVER) is snapshot
    assert list(keeper.to_write(10 * HOUR)) == []
    keeper.noted(snapshot, HOUR)
    keeper.noted(snapshot, NEVER)
    assert list(keeper.to_write(10 * HOUR, once_settled=True)) == []


def test_it_is_written_at_most_so_often_and_only_if_it_differs():
    keeper, held = UsageKeeper(), busy(4)
    keeper.noted(at(0, held), HOUR)
    assert list(keeper.to_write(0)) == [], "nothing has been used yet"
    ((name, first),) = keeper.to_write(1_000)
    assert (name, first.at_ms) == ("q", 1_000)
    assert list(keeper.to_write(1_000 + WRITTEN_EVERY_MS - 1)) == []
    assert [name for name, _ in keeper.to_write(1_000 + WRITTEN_EVERY_MS)] == ["q"]
    keeper.noted(at(1_000 + WRITTEN_EVERY_MS), HOUR)
    assert list(keeper.to_write(HOUR)) == [], "who reads it lets it fade himself"


def test_at_last_what_differs_is_written_at_once():
    keeper, held = UsageKeeper(), busy(4)
    keeper.noted(at(0, held), HOUR)
    assert len(list(keeper.to_write(1_000))) == 1
    assert len(list(keeper.to_write(2_000, once_settled=True))) == 1
    assert list(keeper.to_write(2_000, once_settled=True)) == []


def test_who_starts_again_goes_on_where_the_last_one_ended():
    first, held = UsageKeeper(), busy(4)
    first.noted(at(0, held), HOUR)
    alone = first.noted(at(HOUR, held), HOUR)
    ((_, written),) = first.to_write(HOUR)
    again = UsageKeeper()
    snapshot = again.noted(at(2 * HOUR, held, q=written), HOUR)
    assert gpus(alone) == dict(written.seconds)[GPU]
    assert gpus(snapshot) == pytest.approx(gpus(first.noted(at(2 * HOUR, held), HOUR)))


def test_a_queue_that_is_made_anew_begins_with_nothing():
    keeper = UsageKeeper()
    keeper.noted(at(0, busy(4)), HOUR)
    keeper.noted(replace(at(HOUR), queues=(Queue("default"), Queue("root"))), HOUR)
    assert gpus(keeper.noted(at(HOUR), HOUR)) == 0


def test_queues_that_are_deleted_are_forgotten():
    """A deleted queue's usage record is dropped, so a new queue of that name has no usage."""
    keeper, used = UsageKeeper(), Usage(((GPU, 5.0),), 0)
    for number in range(50):
        queues = [Queue(f"q{number}")]
        snapshot = cluster([node("n0", 8)], [], queues, number * WRITTEN_EVERY_MS)
        keeper.noted(replace(snapshot, usage={f"q{number}": used}), HOUR)
        list(keeper.to_write(number * WRITTEN_EVERY_MS, once_settled=True))
    assert max(container_sizes(keeper).values()) <= 3
