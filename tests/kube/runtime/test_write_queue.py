from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from optsched.kube.client.errors import Forbidden, KubeError, ServerFault, TooMany, Unreachable
from optsched.kube.runtime.timing import Timing
from optsched.kube.runtime.work_queues import AWAY_S, MAX_FAULTS, WriteQueue
from tests.kube.fakes import FakeClock, running, waiting

if TYPE_CHECKING:
    from collections.abc import Callable


class Desk:
    """A write queue, and the results of its writes."""

    def __init__(
        self, *answers: KubeError | None, max_concurrent: int = 1, max_waiting: int | None = None
    ):
        self.written: list[tuple[str, int]] = []
        self.failed: list[str] = []
        self.slept: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_work = 0
        self.at_work_on: list[str] = []
        self._answers = list(answers)
        on_failure: Callable[[str, KubeError], None] = lambda key, _: self.failed.append(key)  # noqa: E731
        ways = waiting(FakeClock(), self.slept)
        self.outbox = WriteQueue(
            self._write,
            ways,
            max_concurrent=max_concurrent,
            max_waiting=max_waiting,
            on_failure=on_failure,
        )

    async def _write(self, key: str, value: int) -> None:
        assert key not in self.at_work_on, "two writes of one key at a time"
        self.at_work_on.append(key)
        self.at_work = max(self.at_work, len(self.at_work_on))
        await self.gate.wait()
        self.at_work_on.remove(key)
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer
        self.written.append((key, value))

    async def work(self) -> None:
        async with running(self.outbox.run()):
            await self.outbox.until_idle()


@pytest.mark.asyncio
async def test_the_newest_value_is_written_in_the_order_of_keys() -> None:
    desk = Desk()
    for key, value in [("a", 1), ("b", 2), ("a", 3)]:
        desk.outbox.enqueue(key, value)
    await desk.work()
    assert desk.written == [("a", 3), ("b", 2)]


@pytest.mark.asyncio
async def test_nothing_to_do_is_idle() -> None:
    await Desk().outbox.until_idle()


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [
        (Unreachable("cut"), 0.5),
        (ServerFault(503, "", ""), 0.5),
        (TooMany(429, "", ""), 0.5),
        (TooMany(429, "", "", 9.0), 9.0),
    ],
)
@pytest.mark.asyncio
async def test_what_may_work_later_is_tried_again(error: KubeError, pause_s: float) -> None:
    desk = Desk(error)
    desk.outbox.enqueue("a", 1)
    await desk.work()
    assert desk.written == [("a", 1)]
    assert desk.slept == [pause_s]
    assert desk.failed == []


@pytest.mark.asyncio
async def test_what_is_refused_is_told_and_holds_up_nobody() -> None:
    desk = Desk(Forbidden(403, "Forbidden", ""))
    desk.outbox.enqueue("a", 1)
    desk.outbox.enqueue("b", 2)
    await desk.work()
    assert (desk.failed, desk.written, desk.slept) == (["a"], [("b", 2)], [])


@pytest.mark.asyncio
async def test_when_too_many_wait_the_oldest_are_given_up() -> None:
    desk = Desk(max_waiting=2)
    for key in "abcd":
        desk.outbox.enqueue(key, 0)
    assert (len(desk.outbox), desk.outbox.num_dropped) == (2, 2)
    await desk.work()
    assert [key for key, _ in desk.written] == ["c", "d"]


@pytest.mark.asyncio
async def test_several_are_written_at_once_but_never_two_of_one_key() -> None:
    desk = Desk(max_concurrent=4)
    desk.gate.clear()
    async with running(desk.outbox.run()):
        for key in "abc":
            desk.outbox.enqueue(key, 1)
        while desk.at_work < 3:
            await asyncio.sleep(0)
        desk.outbox.enqueue("a", 2)
        desk.outbox.enqueue("d", 1)
        while desk.at_work < 4:
            await asyncio.sleep(0)
        desk.gate.set()
        await desk.outbox.until_idle()
    assert sorted(desk.written) == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("d", 1)]


@pytest.mark.asyncio
async def test_a_newer_value_is_not_overtaken_by_one_that_is_tried_again() -> None:
    desk = Desk(Unreachable("cut"))
    desk.gate.clear()
    async with running(desk.outbox.run()):
        desk.outbox.enqueue("a", 1)
        while not desk.at_work:
            await asyncio.sleep(0)
        desk.outbox.enqueue("a", 2)
        desk.gate.set()
        await desk.outbox.until_idle()
    assert desk.written == [("a", 2)]


@pytest.mark.asyncio
async def test_what_waits_can_be_given_up() -> None:
    desk = Desk()
    desk.outbox.enqueue("a", 1)
    desk.outbox.clear()
    await desk.work()
    assert desk.written == []


@pytest.mark.asyncio
async def test_what_fails_holds_up_nothing_else_and_is_given_up_in_the_end() -> None:
    """A webhook refuses more keys than the number of requests that may be in flight."""
    tried: Counter[str] = Counter()
    failed, written = list[str](), list[str]()

    async def write(key: str, _: int) -> None:
        tried[key] += 1
        await asyncio.sleep(0)
        if key.startswith("broken"):
            raise ServerFault(500, "InternalError", "failed calling webhook")
        written.append(key)

    slept: list[float] = []
    ways = waiting(FakeClock(), slept)
    outbox = WriteQueue(write, ways, max_concurrent=2, on_failure=lambda key, _: failed.append(key))
    for number in range(6):
        outbox.enqueue(f"broken-{number}", 0)
    outbox.enqueue("sound", 0)
    async with running(outbox.run()):
        while not written:
            await asyncio.sleep(0)
        assert max(tried.values()) <= 2
        await outbox.until_idle()
    assert set(tried.values()) == {1, MAX_FAULTS}
    assert sorted(failed) == [f"broken-{number}" for number in range(6)]
    assert slept.count(0.5) == 6, "each pauses for itself"
    assert outbox.is_written("broken-0")
    assert outbox._faulty_lanes == set(), "keys that were given up are forgotten"


@pytest.mark.asyncio
async def test_what_probably_fails_too_holds_up_nothing_else() -> None:
    """A webhook of one namespace fails after a long time, for every object of the namespace."""
    broken, served, gate = True, [], asyncio.Event()

    async def write(key: str, _: int) -> None:
        if key.startswith("other/"):
            served.append(key)
            return
        await gate.wait()
        if broken:
            raise ServerFault(500, "InternalError", "failed calling webhook")

    ways, failed = waiting(FakeClock()), list[str]()
    outbox = WriteQueue(
        write,
        ways,
        max_concurrent=4,
        lane_of=lambda key: key.partition("/")[0],
        on_failure=lambda key, _: failed.append(key),
    )
    async with running(outbox.run()):
        outbox.enqueue("bad/first", 1)
        gate.set()
        while outbox._failures == {}:
            await asyncio.sleep(0)
        gate.clear()
        for number in range(8):
            outbox.enqueue(f"bad/{number}", 1)
        outbox.enqueue("other/a", 1)
        async with asyncio.timeout(5):
            while not served:
                await asyncio.sleep(0)
        assert len(outbox._under_way) == 2
        broken = False
        gate.set()
        await outbox.until_idle()
    assert failed == []
    assert outbox._faulty_lanes == set()


@pytest.mark.asyncio
async def test_what_was_given_up_may_be_tried_as_often_again() -> None:
    fault = ServerFault(500, "InternalError", "")
    desk = Desk(*[fault] * MAX_FAULTS, fault)
    for value in (1, 2):
        desk.outbox.enqueue("a", value)
        await desk.work()
    assert (desk.failed, desk.written) == (["a"], [("a", 2)])


@pytest.mark.parametrize("clears", [False, True])
@pytest.mark.asyncio
async def test_a_value_that_was_dropped_does_not_end_the_backoff_of_the_next_one(
    *, clears: bool
) -> None:
    """The timer of a dropped value is still running while the next value of the key waits."""
    timers, tried = list[asyncio.Event](), list[int]()

    async def sleep(_: float) -> None:
        timers.append(asyncio.Event())
        await timers[-1].wait()

    async def write(_: str, value: int) -> None:
        tried.append(value)
        if len(tried) <= 2:
            raise ServerFault(500, "InternalError", "")

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    outbox = WriteQueue(write, Timing(sleep, lambda: 0.0), on_failure=lambda *_: None)
    async with running(outbox.run()):
        outbox.enqueue("a", 1)
        await settle()
        if clears:
            outbox.clear()
        else:
            outbox.discard("a")
        outbox.enqueue("a", 2)
        await settle()
        assert (tried, len(timers)) == ([1, 2], 2)
        timers[0].set()
        await settle()
        assert tried == [1, 2], "the second value is still in its own backoff"
        timers[1].set()
        await outbox.until_idle()
    assert tried == [1, 2, 2]


@pytest.mark.asyncio
async def test_a_server_that_is_away_is_not_asked_for_each_key() -> None:
    desk = Desk(*[Unreachable("refused")] * 40)
    for key in "abcdefgh":
        desk.outbox.enqueue(key, 1)
    await desk.work()
    assert sorted(desk.written) == [(key, 1) for key in "abcdefgh"]
    assert desk.slept.count(AWAY_S) > 30, "it is asked less and less often, and not too seldom"
    assert desk.failed == []
