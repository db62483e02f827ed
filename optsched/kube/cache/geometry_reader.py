"""Reads from a ConfigMap how GPUs and NPUs may be partitioned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import CONFIG_MAP
from optsched.formats.codec.partition_tables import NO_TABLE, parse_device_table
from optsched.kube.client.errors import Forbidden, KubeError, NotFound
from optsched.kube.client.interfaces import Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.formats.codec.partition_tables import DeviceTable
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.interfaces import Api
    from optsched.kube.runtime.timing import Timing

EVERY_S: Final = 30.0

log = logging.getLogger(__name__)


class GeometryReader:
    """Keeps the partition table of a cache up to date while `run` runs.

    `where` returns namespace and name of the ConfigMap, or None if the policy names none;
    `on_change` is called when the table changes.
    """

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        timing: Timing,
        where: Callable[[], Where],
        on_change: Callable[[], None],
    ) -> None:
        self._api = api
        self._cache = cache
        self._timing = timing
        self._where = where
        self._on_change = on_change
        self._told = ""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.step()
            await self._timing.sleep(EVERY_S)

    async def step(self) -> None:
        """Reload the ConfigMap; on error keep the last valid table."""
        where = self._where()
        if where is None:
            return
        try:
            obj = await self._api.read(Ref(CONFIG_MAP, *where))
        except (NotFound, Forbidden) as e:
            self._report(f"no tables of devices: {e}")
            self._apply_table(NO_TABLE)
            return
        except KubeError as e:
            self._report(f"tables of devices not read: {e}")
            return
        table, errors = parse_device_table(obj)
        name = "/".join(where)
        self._report("; ".join(f"ConfigMap {name}: {error}" for error in errors))
        self._apply_table(table)

    def _apply_table(self, table: DeviceTable) -> None:
        before = self._cache.version
        self._cache.set_device_table(table)
        if self._cache.version != before:
            self._on_change()

    def _report(self, text: str) -> None:
        if text and text != self._told:
            log.warning("%s", text)
        self._told = text


Where = tuple[str, str] | None
