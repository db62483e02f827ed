"""Keep a cluster cache up to date: watch each kind, and reload the device partition table."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import CONFIG_MAP, Ref
from optsched.formats.codec.gpu_shares import NO_TABLE, parse_device_table
from optsched.formats.snapshots.assembly import OPTIONAL_KINDS, READ_KINDS
from optsched.kube.cache.reflector import Listed, ReflectorState, reflect
from optsched.kube.client.errors import Forbidden, KubeError, NotFound
from optsched.kube.runtime.lifecycle import Outage

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.kinds import Kind
    from optsched.formats.codec.gpu_shares import DeviceTable
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.timing import Timing

log = logging.getLogger(__name__)


class Follower:
    """Applies watch events to a cluster cache while `run` is active.

    `stale` holds the kinds that have not been listed since `refresh` was last called.
    """

    def __init__(
        self,
        source: Client,
        cache: ClusterCache,
        timing: Timing,
        on_change: Callable[[], None],
        on_failure: Callable[[Kind], None],
        outage: Outage | None = None,
    ) -> None:
        """`outage` tracks API server outages for the whole process; None creates a tracker."""
        self._source = source
        self._cache = cache
        self._timing = timing
        self._on_change = on_change
        self._on_failure = on_failure
        self._outage = outage or Outage()
        self._absent: set[Kind] = set()
        self.stale: set[Kind] = set()
        self._listed: set[Kind] = set()
        self._followed: dict[Kind, asyncio.Task[None]] = {}
        self._restarts = asyncio.Event()

    def refresh(self) -> None:
        """List every installed kind again, even if its first list is still in progress.

        A watch may have stopped delivering events without an error.
        """
        self.stale = set(READ_KINDS) - self._absent
        for kind in self.stale & self._followed.keys():
            # A list that started before `refresh` must not count as the new list.
            self._followed[kind].cancel()
        self._restarts.set()

    async def run(self) -> None:
        """List and watch every kind until cancelled."""
        async with asyncio.TaskGroup() as followers:
            for kind in READ_KINDS:
                self._followed[kind] = followers.create_task(self._follow(kind))
            while True:
                await self._restarts.wait()
                self._restarts.clear()
                for kind in sorted(self.stale, key=READ_KINDS.index):
                    again = self._follow(kind, was_there=kind in self._listed)
                    self._followed[kind] = followers.create_task(again)

    async def _follow(self, kind: Kind, *, was_there: bool = False) -> None:
        is_optional = kind in OPTIONAL_KINDS and not was_there
        absent = (NotFound, Forbidden) if is_optional else ()
        reflection = ReflectorState(self._timing.chance, absent=absent)
        events = reflect(self._source, kind, reflection, self._timing.sleep, self._record_failure)
        async for event in events:
            version = self._cache.version
            self._cache.apply(kind, event)
            self._outage.record_watch_success(kind, kind, was_absent=kind in self._absent)
            self._absent.discard(kind)
            if isinstance(event, Listed) and event.is_last:
                self._listed.add(kind)
                if kind in self.stale:
                    self.stale.discard(kind)
                    self._on_change()
            if self._cache.version != version:
                self._on_change()
            if isinstance(event, Listed):
                # Let other asyncio tasks run between the pages of a long list.
                await asyncio.sleep(0)

    def _record_failure(self, kind: Kind, error: KubeError) -> None:
        if kind not in OPTIONAL_KINDS or not isinstance(error, NotFound | Forbidden):
            self._on_failure(kind)
            self._outage.record_watch_failure(kind, kind, error)
            return
        # A kind that is not installed counts as a kind without objects, and the list is retried.
        # The API server checks permissions first, so Forbidden may also mean that the kind is not
        # installed.
        self.stale.discard(kind)
        self._outage.record_success(kind)
        if kind in self._absent:
            return
        self._absent.add(kind)
        level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
        log.log(level, "%s of %s: continuing without it: %s", kind.plural, kind.api_version, error)
        version = self._cache.version
        self._cache.apply(kind, Listed(()))
        if self._cache.version != version:
            self._on_change()


# --- geometry reader ------------------------------------------------------------------------------

EVERY_S: Final = 30.0


class GeometryReader:
    """Keeps a cache's device partition table up to date while `run` is active.

    `where` returns the namespace and name of the table's ConfigMap, or None if the policy names no
    ConfigMap. `on_change` is called when the device partition table changes.
    """

    def __init__(
        self,
        api: Client,
        cache: ClusterCache,
        timing: Timing,
        where: Callable[[], tuple[str, str] | None],
        on_change: Callable[[], None],
    ) -> None:
        self._api = api
        self._cache = cache
        self._timing = timing
        self._where = where
        self._on_change = on_change
        self._reported = ""

    async def run(self) -> None:
        """Reload the ConfigMap periodically until cancelled."""
        while True:
            await self.step()
            await self._timing.sleep(EVERY_S)

    async def step(self) -> None:
        """Reload the ConfigMap; on an error, keep the last valid table."""
        where = self._where()
        if where is None:
            return
        table: DeviceTable | None
        try:
            obj = await self._api.read(Ref(CONFIG_MAP, *where))
        except (NotFound, Forbidden) as e:
            table, problem = NO_TABLE, f"there is no device partition table: {e}"
        except KubeError as e:
            table, problem = None, f"the device partition table could not be read: {e}"
        else:
            table, errors = parse_device_table(obj)
            name = "/".join(where)
            problem = "; ".join(f"ConfigMap {name}: {error}" for error in errors)
        if problem and problem != self._reported:
            log.warning("%s", problem)
        self._reported = problem
        if table is not None:
            version = self._cache.version
            self._cache.set_device_table(table)
            if self._cache.version != version:
                self._on_change()
