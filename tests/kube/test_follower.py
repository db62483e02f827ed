"""What follows a cluster goes on without kinds that are not installed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from optsched.api import kinds
from optsched.formats.index import OPTIONAL_KINDS, READ_KINDS
from optsched.kube.cache import ClusterCache
from optsched.kube.errors import Forbidden, NotFound
from optsched.kube.follower import Follower
from optsched.kube.ports import Page
from tests.formats.objects import node, thing
from tests.kube.fakes import FakeClock, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from optsched.api.kinds import Kind
    from optsched.kube.errors import KubeError

SPEC = {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "n1"}}}]}
HYPER_NODE = thing("topology.volcano.sh/v1alpha1", "HyperNode", "s0", spec=SPEC)


class Server:
    """Lists one node; HyperNodes fail until they are installed."""

    def __init__(self, error: KubeError) -> None:
        self.error: KubeError | None = error

    async def list_page(self, kind: Kind, limit: int, token: str = "") -> Page:
        if kind == kinds.HYPER_NODE and self.error is not None:
            raise self.error
        items = {kinds.NODE: [node("n1")], kinds.HYPER_NODE: [HYPER_NODE]}.get(kind, [])
        return Page(items, "7")

    async def watch_lines(self, kind: Kind, resource_version: str) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""


class Following:
    def __init__(self, error: KubeError) -> None:
        self.server = Server(error)
        self.cache = ClusterCache()
        self.failed: list[Kind] = []
        self.follower = Follower(
            self.server, self.cache, waiting(FakeClock()), lambda: None, self.failed.append
        )

    async def until(self, goal) -> None:
        task = asyncio.create_task(self.follower.run())
        try:
            async with asyncio.timeout(5):
                while not goal():
                    await asyncio.sleep(0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_only_kinds_that_are_read_may_be_missing():
    assert set(READ_KINDS) >= OPTIONAL_KINDS


@pytest.mark.asyncio
async def test_a_kind_that_is_not_installed_has_no_objects(caplog: pytest.LogCaptureFixture):
    following = Following(NotFound(404, "NotFound", "the server could not find the resource"))
    with caplog.at_level(logging.INFO):
        await following.until(lambda: following.cache.is_synced)
    assert following.failed == []
    assert following.cache.snapshot(0).topology.hypernodes == ()
    told = [r.message for r in caplog.records if "hypernodes" in r.message]
    assert told == ["hypernodes: topology.volcano.sh/v1alpha1 is not installed; going on without"]


@pytest.mark.asyncio
async def test_once_it_is_installed_it_is_followed():
    following = Following(NotFound(404, "NotFound", ""))

    def there() -> bool:
        if following.cache.is_synced:
            following.server.error = None
        return bool(following.cache.snapshot(0).topology.hypernodes)

    await following.until(there)
    assert following.cache.snapshot(0).topology.covered == {"s0": frozenset({"n1"})}


@pytest.mark.asyncio
async def test_any_other_refusal_is_a_failure():
    following = Following(Forbidden(403, "Forbidden", "no"))
    await following.until(lambda: following.failed)
    assert not following.cache.is_synced
    assert set(following.failed) == {kinds.HYPER_NODE}
