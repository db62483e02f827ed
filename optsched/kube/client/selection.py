"""Lists of the objects of one kind, limited by namespace, labels or fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from optsched.kube.client.errors import Gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from optsched.api.kinds import Kind
    from optsched.kube.client.interfaces import Page, Raw

PAGE_SIZE: Final = 500
TRIES: Final = 3
"""Attempts of a list whose pages expire while it is read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind; labels, fields: selectors. namespace: empty for all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a request."""
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in asked.items() if value}


EVERYTHING: Final = Selection()


class SelectiveSource(Protocol):
    """Lists and watches of selected objects; every method may raise `KubeError`."""

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        """A page of a list."""

    def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        """The events after a resource version, a line of JSON each."""


async def list_objects(
    source: SelectiveSource, kind: Kind, selection: Selection = EVERYTHING
) -> list[Raw]:
    """Return all selected objects of a kind, in the server's order; raises `KubeError`."""
    for _ in range(TRIES - 1):
        try:
            return await _pages(source, kind, selection)
        except Gone:
            continue
    return await _pages(source, kind, selection)


async def _pages(source: SelectiveSource, kind: Kind, selection: Selection) -> list[Raw]:
    found: list[Raw] = []
    token = ""
    while True:
        page = await source.list_page(kind, PAGE_SIZE, token, selection)
        found.extend(page.items)
        token = page.token
        if not token:
            return found
