from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import HYPER_NODE, NODE
from optsched.formats.snapshots.assembly import OPTIONAL_KINDS, READ_KINDS
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.follower import Follower
from optsched.kube.cache.reflector import ABSENT_S
from optsched.kube.client.errors import Forbidden, NotFound, TooMany, Unreachable
from tests.formats.objects import node
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Page

NO = Forbidden(403, "Forbidden", "you may not")


class Telling(FakeApi):
    """A fake API that delivers queued events to watches of nodes."""

    def __init__(self) -> None:
        super().__init__(node("n1"))
        self.news: asyncio.Queue[bytes] = asyncio.Queue()
        self.absent: set[Kind] = set()

    async def list_page(self, kind: Kind, limit: int, token: str = "", _: object = None) -> Page:
        if kind in self.absent:
            await asyncio.sleep(0)
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        return await super().list_page(kind, limit, token)

    async def watch_lines(
        self, kind: Kind, resource_version: str, _: object = None
    ) -> AsyncGenerator[bytes, None]:
        while kind == NODE:
            yield await self.news.get()
        await asyncio.Event().wait()

    def report(self, what: str, obj: dict[str, Any]) -> None:
        self.news.put_nowait(json.dumps({"type": what, "object": self.put(obj)}).encode())


class Listener:
    """A follower and the events that it reported."""

    def __init__(self, slept: list[float] | None = None) -> None:
        self.api = Telling()
        self.cache = ClusterCache()
        self.changes = 0
        self.failures: list[Kind] = []
        self.follower = Follower(
            self.api, self.cache, waiting(FakeClock(), slept), self._changed, self.failures.append
        )

    def _changed(self) -> None:
        self.changes += 1

    def nodes(self) -> list[str]:
        return [n.name for n in self.cache.snapshot(0).nodes]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_every_kind_is_listed_and_then_watched() -> None:
    listener = Listener()
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
        assert listener.nodes() == ["n1"]
        listener.api.report("ADDED", node("n2"))
        await until(lambda: listener.nodes() == ["n1", "n2"])
        listener.api.report("DELETED", node("n1"))
        await until(lambda: listener.nodes() == ["n2"])
    assert listener.changes >= len(READ_KINDS) + 2
    assert listener.failures == []


@pytest.mark.asyncio
async def test_what_changes_nothing_is_not_told() -> None:
    listener = Listener()
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
        before = listener.changes
        old = json.dumps({"type": "MODIFIED", "object": listener.api.of(NODE)[0]}).encode()
        listener.api.news.put_nowait(old)
        listener.api.report("ADDED", node("n2"))
        await until(lambda: listener.nodes() == ["n1", "n2"])
        assert listener.changes == before + 1


@pytest.mark.asyncio
async def test_failures_are_counted_and_logged_once_until_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "optsched")
    listener = Listener()
    listener.api.refuse("list", *[NO] * len(READ_KINDS) * 2)
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
    assert listener.failures.count(NODE) == 2
    reported = [m for m in caplog.messages if m.startswith("nodes: ")]
    assert reported == [
        "nodes: cannot be followed: 403 Forbidden: you may not",
        "nodes: followed again",
    ]


@pytest.mark.asyncio
async def test_kinds_that_need_not_be_installed_are_done_without() -> None:
    listener = Listener()
    listener.api.absent.update(OPTIONAL_KINDS)
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
    assert listener.failures == []


@pytest.mark.asyncio
async def test_so_are_those_of_them_that_may_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    rules = {kind: NO for kind in (HYPER_NODE,)}
    listener.api.refuse("list", *(rules.get(kind) for kind in READ_KINDS))
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
    assert listener.failures == []
    (reported,) = (m for m in caplog.messages if m.startswith("hypernodes"))
    assert reported.endswith("continuing without it: 403 Forbidden: you may not")


@pytest.mark.asyncio
async def test_a_kind_that_was_broken_and_then_absent_is_followed_again_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "optsched")
    listener = Listener()
    first: dict[Kind, KubeError] = {HYPER_NODE: Unreachable("no answer")}
    listener.api.refuse("list", *map(first.get, READ_KINDS), NO)

    def followed() -> int:
        return caplog.messages.count("hypernodes: followed again")

    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced and followed() > 0)
    assert any("continuing without" in message for message in caplog.messages)
    assert followed() == 1


@pytest.mark.asyncio
async def test_without_the_others_nothing_begins() -> None:
    listener = Listener()
    listener.api.absent.add(NODE)
    async with running(listener.follower.run()):
        await until(lambda: len(listener.failures) > 3)
        assert not listener.cache.is_synced


# --- what is known to be new ---------------------------------------------------------------------


@pytest.mark.asyncio
async def test_all_that_is_there_is_listed_again_before_it_counts_as_fresh() -> None:
    listener = Listener()
    listener.api.absent.add(HYPER_NODE)
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
        assert not listener.follower.stale
        listener.api.put(node("n2"))  # the watch of nodes reports no event for n2
        listener.follower.refresh()
        assert listener.follower.stale
        await until(lambda: not listener.follower.stale)
        assert listener.nodes() == ["n1", "n2"]
        listener.api.report("ADDED", node("n3"))
        await until(lambda: listener.nodes() == ["n1", "n2", "n3"])
    lists = [call for call in listener.api.calls if call.startswith("list ")]
    assert len(lists) == 2 * (len(READ_KINDS) - 1), "a kind that is not installed is no news"


@pytest.mark.asyncio
async def test_a_list_that_began_before_does_not_count() -> None:
    """The follower does not retry a kind that is not installed more often after a refresh."""
    slept: list[float] = []
    listener = Listener(slept)
    listener.api.absent.add(HYPER_NODE)
    async with running(listener.follower.run()):
        await until(lambda: f"list {NODE}" in listener.api.calls)
        assert not listener.cache.is_synced
        listener.follower.refresh()
        await until(lambda: listener.cache.is_synced and not listener.follower.stale)
    assert listener.api.calls.count(f"list {NODE}") == 2
    assert set(slept) <= {ABSENT_S}


@pytest.mark.asyncio
async def test_what_can_not_be_listed_again_is_not_fresh() -> None:
    listener = Listener()
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
        listener.api.absent.add(NODE)
        listener.follower.refresh()
        await until(lambda: len(listener.failures) > 3)
        assert listener.follower.stale
        listener.api.absent.clear()
        await until(lambda: not listener.follower.stale)


@pytest.mark.asyncio
async def test_a_server_that_is_away_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener()
    listener.api.refuse("list", *[Unreachable("refused")] * len(READ_KINDS) * 3)
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
    (line,) = (m for m in caplog.messages if "cannot be followed" in m)
    assert line.endswith("cannot be followed: refused")


@pytest.mark.asyncio
async def test_a_server_that_starts_is_still_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener()
    away = [Unreachable("refused")] * len(READ_KINDS)
    busy = [TooMany(429, "TooManyRequests", "storage is (re)initializing", 1.0)] * len(READ_KINDS)
    listener.api.refuse("list", *away, *busy)
    async with running(listener.follower.run()):
        await until(lambda: listener.cache.is_synced)
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


@pytest.mark.asyncio
async def test_a_kind_that_is_not_installed_is_looked_for_once_a_minute() -> None:
    slept: list[float] = []
    listener = Listener(slept)
    listener.api.absent.update(OPTIONAL_KINDS)
    async with running(listener.follower.run()):
        await until(lambda: len(slept) >= 5 * len(OPTIONAL_KINDS))
    assert set(slept) == {ABSENT_S}
