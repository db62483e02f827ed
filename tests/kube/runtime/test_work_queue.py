"""Tests of the queue of keys to reconcile."""

from __future__ import annotations

import asyncio

import pytest

from optsched.kube.runtime.timing import BackoffSteps
from optsched.kube.runtime.work_queues import WorkQueue

pytestmark = pytest.mark.asyncio


def make(first_s: float = 0.001) -> WorkQueue[str]:
    return WorkQueue(lambda: 0.0, BackoffSteps(first_s, 1.0))


async def test_a_key_that_is_asked_for_often_comes_once_and_in_turn() -> None:
    queue = make()
    for key in "abab":
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.next_key(), await queue.next_key()] == ["a", "b"]


async def test_a_key_that_is_worked_on_comes_again_only_afterwards() -> None:
    queue = make()
    queue.add("a")
    key = await queue.next_key()
    queue.add("a")
    queue.add("b")
    assert await queue.next_key() == "b"
    assert not queue.is_idle
    queue.mark_done(key)
    assert await queue.next_key() == "a"
    queue.mark_done("a")
    queue.mark_done("b")
    assert queue.is_idle


async def test_a_key_that_fails_comes_again_later_and_later() -> None:
    queue = make()
    queue.add("a")
    for failures in (1, 2, 3):
        assert queue.retry_later(await queue.next_key()) == failures
    queue.mark_done(await queue.next_key())
    queue.add("a")
    assert queue.retry_later(await queue.next_key()) == 1


async def test_who_waits_is_woken() -> None:
    queue = make()
    waiter = asyncio.create_task(queue.next_key())
    await asyncio.sleep(0)
    queue.add_after("a", 0.001)
    assert await waiter == "a"


async def test_the_sooner_of_two_times_counts() -> None:
    queue = make()
    queue.add_after("a", 60.0)
    queue.add_after("a", 0.001)
    queue.add_after("a", 60.0)
    async with asyncio.timeout(5):
        assert await queue.next_key() == "a"
    queue.clear()


async def test_what_waits_can_be_forgotten() -> None:
    queue = make()
    queue.add("a")
    queue.add_after("b", 0.001)
    key = await queue.next_key()
    queue.add("a")
    queue.clear()
    queue.mark_done(key)
    assert (len(queue), queue.is_idle) == (0, True)
