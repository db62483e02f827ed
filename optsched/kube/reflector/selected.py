"""Watches of a selection: the objects of a kind that match a namespace, labels or fields."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.kube.client.errors import Forbidden, NotFound, Rejected, Unauthorized
from optsched.kube.client.selection import Selection
from optsched.kube.reflector.reflector import Deleted, Listed, ReflectorState, reflect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from optsched.api.kinds import Kind, Ref
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.interfaces import Page, Raw
    from optsched.kube.client.selection import SelectiveSource

_FINAL: Final = (Unauthorized, Forbidden, NotFound, Rejected)


@dataclass(frozen=True, slots=True)
class SelectedSource:
    """A `Source` of the selected objects."""

    source: SelectiveSource
    selection: Selection

    async def list_page(self, kind: Kind, limit: int, token: str = "") -> Page:
        """See `Source`."""
        return await self.source.list_page(kind, limit, token, self.selection)

    def watch_lines(self, kind: Kind, resource_version: str) -> AsyncGenerator[bytes, None]:
        """See `Source`."""
        return self.source.watch_lines(kind, resource_version, self.selection)


async def watch_object(
    source: SelectiveSource, ref: Ref, on_failure: Callable[[KubeError], None]
) -> AsyncIterator[Raw | None]:
    """Yield the states of one object as they change, forever; None while it does not exist.

    on_failure: called on temporary errors, such as an unreachable server; the watch is retried.
    Raises `KubeError` on permanent ones.
    """

    def report_failure(_: Kind, error: KubeError) -> None:
        if isinstance(error, _FINAL):
            raise error
        on_failure(error)

    narrow = SelectedSource(source, Selection(ref.namespace, fields=f"metadata.name={ref.name}"))
    reflection = ReflectorState(lambda: 0.5)
    async for event in reflect(narrow, ref.kind, reflection, asyncio.sleep, report_failure):
        if isinstance(event, Listed):
            for state in event.items or (None,):
                yield state
        else:
            yield None if isinstance(event, Deleted) else event.obj
