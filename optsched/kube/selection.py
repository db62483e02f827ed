"""Some objects of a kind: those of a namespace, with labels or fields; or one of them, for long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from optsched.kube.errors import Forbidden, Gone, NotFound, Rejected, Unauthorized
from optsched.kube.watch import Deleted, Listed, Reflection, reflect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from optsched.api.kinds import Kind, Ref
    from optsched.kube.errors import KubeError
    from optsched.kube.ports import Page, Raw

PAGE_SIZE: Final = 500
TRIES: Final = 3
"""How often a list is begun again because its pages were not kept long enough."""

_FINAL: Final = (Unauthorized, Forbidden, NotFound, Rejected)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind; labels, fields: as in queries. namespace: empty for all of them."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a request."""
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in asked.items() if value}


EVERYTHING: Final = Selection()


class Selecting(Protocol):
    """Lists and watches of some objects; every method may raise `KubeError`."""

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        """A page of a list."""

    def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        """The events after a resource version, a line of JSON each."""


async def select(source: Selecting, kind: Kind, selection: Selection = EVERYTHING) -> list[Raw]:
    """All objects of a kind that are meant, in the order of the server; raises `KubeError`."""
    for _ in range(TRIES - 1):
        try:
            return await _pages(source, kind, selection)
        except Gone:
            continue
    return await _pages(source, kind, selection)


async def _pages(source: Selecting, kind: Kind, selection: Selection) -> list[Raw]:
    found: list[Raw] = []
    token = ""
    while True:
        page = await source.list_page(kind, PAGE_SIZE, token, selection)
        found.extend(page.items)
        token = page.token
        if not token:
            return found


@dataclass(frozen=True, slots=True)
class Narrow:
    """A `Source` of what is selected."""

    source: Selecting
    selection: Selection

    async def list_page(self, kind: Kind, limit: int, token: str = "") -> Page:
        """See `Source`."""
        return await self.source.list_page(kind, limit, token, self.selection)

    def watch_lines(self, kind: Kind, resource_version: str) -> AsyncGenerator[bytes, None]:
        """See `Source`."""
        return self.source.watch_lines(kind, resource_version, self.selection)


async def states_of(
    source: Selecting, ref: Ref, on_failure: Callable[[KubeError], None]
) -> AsyncIterator[Raw | None]:
    """The states of one object as they come, for ever; None where it is not there.

    on_failure: told of what may pass, such as a server that is away; it is tried again. Raises
    `KubeError` for what does not pass.
    """

    def told(_: Kind, error: KubeError) -> None:
        if isinstance(error, _FINAL):
            raise error
        on_failure(error)

    narrow = Narrow(source, Selection(ref.namespace, fields=f"metadata.name={ref.name}"))
    reflection = Reflection(lambda: 0.5)
    async for event in reflect(narrow, ref.kind, reflection, asyncio.sleep, told):
        if isinstance(event, Listed):
            for state in event.items or (None,):
                yield state
        else:
            yield None if isinstance(event, Deleted) else event.obj
