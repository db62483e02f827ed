"""The objects that a controller may read: a cluster as its watches have reported it.

A look costs no request. Recent writes may be missing in it; the shell does not reconcile an object
again before its own writes are seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from optsched.api.kinds import Kind
    from optsched.controllers.effects import Fabric, FabricAnswer, Manifest, Question


@dataclass(frozen=True, slots=True)
class Index:
    """A way to find objects of a kind by something else than their names.

    values: under which words an object is found; it has to depend on nothing but the object.
    """

    kind: Kind
    name: str
    values: Callable[[Manifest], Iterable[str]]


class World(Protocol):
    """Objects as they were last seen; none of them may be changed."""

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """An object; namespace: empty outside of namespaces."""

    def listed(self, kind: Kind, namespace: str | None = None) -> Collection[Manifest]:
        """The objects of a kind, of one namespace or of all."""

    def owned_by(self, kind: Kind, uid: str) -> Collection[Manifest]:
        """The objects of a kind whose controlling owner has this UID."""

    def list_indexed(self, index: Index, value: str) -> Collection[Manifest]:
        """The objects that an index has under a word; the controller has to name the index."""

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The metadata of an object outside of what is watched, whose name was requested.

        It was there when an object of that name was to be created a few seconds ago.
        """

    def is_answered(self, question: Question) -> bool:
        """Whether a question has an answer by now."""

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        """The last reply of a fabric; None before the first query."""
