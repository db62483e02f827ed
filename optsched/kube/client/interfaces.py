"""Interfaces to an API server; `client.Client` implements them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from optsched.api.kinds import POD
from optsched.api.kinds import Ref as Ref
from optsched.kube.client.errors import Gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from optsched.api.kinds import Kind


Raw: TypeAlias = "dict[str, Any]"
"""An object as JSON has it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    resource_version: of the whole list: a watch from there misses nothing.
    token: where the next part begins; empty with the last one.
    """

    items: Sequence[Raw]
    resource_version: str
    token: str = ""


def pod_ref(task: str) -> Ref:
    """Return the pod of a task, by its key `namespace/name`."""
    namespace, _, name = task.partition("/")
    return Ref(POD, namespace, name)


class Source(Protocol):
    """Lists and watches; every method may raise `KubeError`."""

    async def list_page(self, kind: Kind, limit: int, token: str = "") -> Page:
        """A page of a list over all namespaces."""

    def watch_lines(self, kind: Kind, resource_version: str) -> AsyncGenerator[bytes, None]:
        """The events after a resource version, a line of JSON each, until the server ends it."""


class Api(Protocol):
    """Single objects; every method may raise `KubeError`."""

    async def read(self, ref: Ref) -> Raw:
        """An object."""

    async def create(self, ref: Ref, body: Raw) -> Raw:
        """Create an object; returns it as stored."""

    async def patch(self, ref: Ref, body: Raw, subresource: str = "") -> Raw:
        """Merge into an object or a subresource of it (RFC 7386); returns it as stored."""

    async def evict(self, namespace: str, name: str, uid: str, version: str = "") -> None:
        """Evict a pod, if it is that very pod and no disruption budget is against it.

        version: its resource version; Conflict if it has changed since. Empty for any.
        """

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod to a node, if it is that very pod and bound to none.

        It gets the annotations with its node, in one step (`BindingREST.assignPod`).
        """


class ValidatingApi(Protocol):
    """Dry runs."""

    async def validate(self, ref: Ref, body: Raw) -> tuple[str, ...]:
        """Return the server's warnings on an object that it would create; nothing is stored.

        Raises `Rejected`, with its causes, for an object that is not valid.
        """


class DeletingApi(Api, Protocol):
    """Methods that only controllers need."""

    async def read_metadata(self, ref: Ref) -> Raw:
        """An object's metadata alone; nothing else of it leaves the server."""

    async def delete(
        self,
        ref: Ref,
        uid: str = "",
        propagation: str = "Background",
        grace_s: int | None = None,
    ) -> Raw:
        """Delete an object, if it is that very one.

        Returns the object while it terminates, or a Status if it is deleted immediately.
        """


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
            return await _list_pages(source, kind, selection)
        except Gone:
            continue
    return await _list_pages(source, kind, selection)


async def _list_pages(source: SelectiveSource, kind: Kind, selection: Selection) -> list[Raw]:
    found: list[Raw] = []
    token = ""
    while True:
        page = await source.list_page(kind, PAGE_SIZE, token, selection)
        found.extend(page.items)
        token = page.token
        if not token:
            return found
