"""Keeps a cache up to date: a list and a watch for each kind that snapshots are made of."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from optsched.formats.index import OPTIONAL_KINDS, READ_KINDS
from optsched.kube.errors import Forbidden, NotFound
from optsched.kube.watch import Listed, Reflection, reflect

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.kinds import Kind
    from optsched.kube.cache import ClusterCache
    from optsched.kube.errors import KubeError
    from optsched.kube.ports import Source
    from optsched.kube.waiting import Waiting

log = logging.getLogger(__name__)


class Follower:
    """Carries what watches tell into a cache; `run` has to be running."""

    def __init__(
        self,
        source: Source,
        cache: ClusterCache,
        waiting: Waiting,
        on_change: Callable[[], None],
        on_failure: Callable[[Kind], None],
    ) -> None:
        self._source = source
        self._cache = cache
        self._waiting = waiting
        self._on_change = on_change
        self._on_failure = on_failure
        self._broken: set[Kind] = set()
        self._absent: set[Kind] = set()

    async def run(self) -> None:
        """Follow every kind until cancelled."""
        async with asyncio.TaskGroup() as followers:
            for kind in READ_KINDS:
                followers.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        reflection = Reflection(self._waiting.chance)
        events = reflect(self._source, kind, reflection, self._waiting.sleep, self._failed)
        async for event in events:
            version = self._cache.version
            self._cache.apply(kind, event)
            if kind in self._broken or kind in self._absent:
                self._broken.discard(kind)
                self._absent.discard(kind)
                log.info("%s: followed again", kind.plural)
            if self._cache.version != version:
                self._on_change()
            if isinstance(event, Listed):
                # A long list is read page by page; others get their turn in between.
                await asyncio.sleep(0)

    def _failed(self, kind: Kind, error: KubeError) -> None:
        if kind in OPTIONAL_KINDS and isinstance(error, NotFound | Forbidden):
            self._do_without(kind, error)
            return
        self._on_failure(kind)
        if kind not in self._broken:
            self._broken.add(kind)
            log.warning("%s: can not be followed: %s", kind.plural, error)

    def _do_without(self, kind: Kind, error: KubeError) -> None:
        """Go on as if a kind that can not be had had no objects; it is asked for again.

        Rights are looked at before kinds: who has none is not told whether a kind is installed.
        """
        if kind in self._absent:
            return
        self._absent.add(kind)
        level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
        log.log(level, "%s of %s: going on without: %s", kind.plural, kind.api_version, error)
        version = self._cache.version
        self._cache.apply(kind, Listed(()))
        if self._cache.version != version:
            self._on_change()
