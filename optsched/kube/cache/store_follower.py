"""Keep a store up to date by watches of scopes of kinds."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from optsched.controllers.controller import WHOLE
from optsched.kube.cache.reflector import Listed, ReflectorState, reflect
from optsched.kube.client.errors import KubeError, NotFound
from optsched.kube.client.listing import Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.kinds import Kind
    from optsched.controllers.controller import Scope
    from optsched.kube.cache.object_store import Store
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.outage import Outage
    from optsched.kube.runtime.timing import Timing

Watch: TypeAlias = "tuple[Kind, Scope]"


class StoreFollower:
    """A follower that applies watch events to a store while the coroutines of `follow` run.

    `absent` holds the watches of kinds that are not installed. `stale` holds the watches from which
    the caller expects another complete list.
    """

    def __init__(
        self,
        source: Client,
        store: Store,
        timing: Timing,
        outage: Outage,
        on_failure: Callable[[Kind], None],
    ) -> None:
        self.absent: set[Watch] = set()
        self.stale: set[Watch] = set()
        self._source = source
        self._store = store
        self._timing = timing
        self._outage = outage
        self._on_failure = on_failure

    async def follow(self, kind: Kind, scope: Scope = WHOLE, *, was_there: bool = False) -> None:
        """List and watch a scope of a kind until cancelled.

        `was_there` is true if the kind is known to be installed.
        """
        absent = () if was_there else (NotFound,)
        reflection = ReflectorState(self._timing.chance, absent=absent)
        failed = partial(self._record_failure, scope)
        fields = f"metadata.name={scope.name}" if scope.name else ""
        selection = Selection(scope.namespace, scope.label, fields)
        async for event in reflect(
            self._source, kind, reflection, self._timing.sleep, failed, selection
        ):
            self._store.apply(kind, event, scope)
            self._outage.record_watch_success((kind, scope), kind)
            self.absent.discard((kind, scope))
            if isinstance(event, Listed):
                if event.is_last:
                    self.stale.discard((kind, scope))
                # Let other asyncio tasks run between the pages of a long list.
                await asyncio.sleep(0)

    def _record_failure(self, scope: Scope, kind: Kind, error: KubeError) -> None:
        self._on_failure(kind)
        is_reported = self._outage.record_watch_failure((kind, scope), kind, error)
        if is_reported and isinstance(error, NotFound) and kind.plural in self._store.unsynced():
            # A kind that is not installed is treated as empty, and its list is retried. A kind that
            # was listed before is missing only while a server starts.
            self.absent.add((kind, scope))
            self._store.apply(kind, Listed(()), scope)
