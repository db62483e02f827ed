"""A controller: its kind of objects, what it reads, and the changes on which it reconciles one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from optsched.api.kinds import Ref
from optsched.controllers.json_fields import (
    controller_of,
    group_of,
    labels_of,
    name_of,
    namespace_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.api.kinds import Kind
    from optsched.controllers.effects import Effects, Fabric, FabricAnswer, Manifest, Question


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


Reconcile: TypeAlias = "Callable[[Manifest, World], Effects]"
Decide: TypeAlias = "Callable[[Ref, World], Effects]"
Wakes: TypeAlias = "Callable[[Manifest, World], Iterable[Ref]]"


@dataclass(frozen=True, slots=True)
class Scope:
    """The watched objects of a kind; others never enter the process.

    namespace, name: those that they have; empty for any.
    label: a label that they have, with any value; empty for any.
    """

    namespace: str = ""
    name: str = ""
    label: str = ""

    def includes(self, obj: Manifest) -> bool:
        """Whether an object is one of them."""
        return (
            self.namespace in ("", namespace_of(obj))
            and self.name in ("", name_of(obj))
            and (not self.label or self.label in labels_of(obj))
        )


WHOLE: Final = Scope()
"""All objects of a kind."""


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller.

    name: as in `--controllers`; several may share one.
    kind: what it looks after.
    decide: the effects for one of them, whether it exists or not; see `existing`.
    wakes: by kind, which of its objects have to be reconciled when an object is created, changed
    (called with the object before and after) or deleted (in its last state). Its own kind wakes
    itself.
    indexes: the indexes that it passes to `World.list_indexed`.
    reads: further kinds that it reads, whose changes trigger nothing.
    facets: by kind, the fields that matter, where not all do: changes of others trigger nothing.
    Nodes, for one, say every few seconds that they are alive.
    scopes: by kind, which objects it reads, where not all of them.
    """

    name: str
    kind: Kind
    decide: Decide
    wakes: Mapping[Kind, Wakes] = field(default_factory=dict)
    indexes: tuple[Index, ...] = ()
    reads: tuple[Kind, ...] = ()
    facets: Mapping[Kind, Callable[[Manifest], object]] = field(default_factory=dict)
    scopes: Mapping[Kind, Scope] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[Kind]:
        """All kinds that have to be followed for it."""
        indexed = (index.kind for index in self.indexes)
        return frozenset((self.kind, *self.wakes, *indexed, *self.reads))


def scopes_of(controllers: Iterable[Controller]) -> dict[Kind, tuple[Scope, ...]]:
    """The scope of each watched kind; a scope of everything makes all others needless."""
    found: dict[Kind, dict[Scope, None]] = {}
    for controller in controllers:
        for kind in controller.kinds:
            found.setdefault(kind, {})[controller.scopes.get(kind, WHOLE)] = None
    return {kind: (WHOLE,) if WHOLE in scopes else tuple(scopes) for kind, scopes in found.items()}


def existing(kind: Kind, reconcile: Reconcile) -> Decide:
    """Decides by the object itself; nothing is to be done for a missing one."""

    def decide(ref: Ref, world: World) -> Effects:
        obj = world.get(kind, ref.namespace, ref.name)
        return () if obj is None else reconcile(obj, world)

    return decide


def owner_wakes(kind: Kind) -> Wakes:
    """Wakes the controlling owner of an object, if it is of this kind."""

    def wakes(obj: Manifest, _: World) -> Iterable[Ref]:
        owner = controller_of(obj)
        if owner is None or owner.get("kind") != kind.kind:
            return ()
        if group_of(str(owner.get("apiVersion", ""))) != kind.group:
            return ()
        return (Ref(kind, namespace_of(obj) if kind.namespaced else "", str(owner["name"])),)

    return wakes
