"""Controllers: the kinds that a controller reconciles and reads, and what wakes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from optsched.api.json_fields import (
    controller_of,
    is_owned_as,
    labels_of,
    name_of,
    namespace_of,
)
from optsched.api.kinds import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.api.json_fields import Manifest
    from optsched.api.kinds import Kind
    from optsched.controllers.effects import Effects, Fabric, FabricAnswer, Question


@dataclass(frozen=True, slots=True)
class Index:
    """An index of the objects of one kind by values other than their names.

    `values` returns the index values of an object. The values must depend only on the object.
    """

    kind: Kind
    name: str
    values: Callable[[Manifest], Iterable[str]]


class World(Protocol):
    """The last observed state of all objects. Callers must not change the objects."""

    @property
    def now_ms(self) -> int:
        """The current time in milliseconds since 1970."""

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None if the object does not exist.

        `namespace` is empty for a cluster-scoped kind.
        """

    def listed(self, kind: Kind, namespace: str | None = None) -> Collection[Manifest]:
        """Return the objects of a kind in a namespace, or in all namespaces for None."""

    def owned_by(self, kind: Kind, owner: Kind, uid: str) -> Collection[Manifest]:
        """Return the objects of a kind whose controlling owner has the given kind and UID.

        A reference with the UID of an owner and another kind is forged: admission reviews only
        references that name the kind of the owner.
        """

    def list_indexed(self, index: Index, value: str) -> Collection[Manifest]:
        """Return the objects that an index lists under a value.

        The controller must declare the index.
        """

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the metadata of an object that no watch covers.

        The metadata is known for a few seconds after a creation fails because an object of the same
        name exists.
        """

    def is_answered(self, question: Question) -> bool:
        """Return whether the server at the address of a question has answered."""

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        """Return the last reply of a fabric server, or None before the first query."""


Reconcile: TypeAlias = "Callable[[Manifest, World], Effects]"
Decide: TypeAlias = "Callable[[Ref, World], Effects]"
Wakes: TypeAlias = "Callable[[Manifest, World], Iterable[Ref]]"


@dataclass(frozen=True, slots=True)
class Scope:
    """The watched objects of one kind. Controllers never read other objects of the kind.

    `namespace` and `name` restrict the watched objects to a namespace and a name; an empty text
    restricts nothing. `label` restricts the watched objects to objects with this label key; an
    empty text restricts nothing.
    """

    namespace: str = ""
    name: str = ""
    label: str = ""

    def includes(self, obj: Manifest) -> bool:
        """Return whether an object is in this scope."""
        return (
            self.namespace in ("", namespace_of(obj))
            and self.name in ("", name_of(obj))
            and (not self.label or self.label in labels_of(obj))
        )


WHOLE: Final = Scope()
"""The scope that contains all objects of a kind."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller of one kind of objects.

    Attributes
    ----------
    name
        The name in `--controllers`. Several controllers may share a name.
    kind
        The kind of the objects that the controller reconciles.
    decide
        Function that returns the effects for an object, which may not exist; see `existing`.
    wakes
        Functions by kind that return the objects to reconcile after a change. Each function is
        called with the object before and after a change, or with its last state after a deletion.
        An object of the kind that the controller reconciles always wakes itself.
    indexes
        The indexes that the controller passes to `World.list_indexed`.
    reads
        Further kinds that the controller reads. Changes of these kinds wake no object.
    facets
        Functions by kind that return the relevant fields. Changes of other fields wake no
        object. For example, every node updates its heartbeat every few seconds.
    scopes
        The objects that the controller reads, by kind. All objects of other kinds are read.
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
        """All kinds that must be watched for the controller."""
        indexed = (index.kind for index in self.indexes)
        return frozenset((self.kind, *self.wakes, *indexed, *self.reads))


def scopes_of(controllers: Iterable[Controller]) -> dict[Kind, tuple[Scope, ...]]:
    """Return the scopes of each watched kind. `WHOLE` replaces all other scopes of the kind."""
    found: dict[Kind, dict[Scope, None]] = {}
    for controller in controllers:
        for kind in controller.kinds:
            found.setdefault(kind, {})[controller.scopes.get(kind, WHOLE)] = None
    return {kind: (WHOLE,) if WHOLE in scopes else tuple(scopes) for kind, scopes in found.items()}


def existing(
    kind: Kind, reconcile: Reconcile, if_missing: Decide = lambda _ref, _world: ()
) -> Decide:
    """Return a `Decide` that reconciles an existing object.

    `if_missing` decides for a missing object; by default, a missing object has no effects.
    """

    def decide(ref: Ref, world: World) -> Effects:
        obj = world.get(kind, ref.namespace, ref.name)
        return if_missing(ref, world) if obj is None else reconcile(obj, world)

    return decide


def owner_wakes(kind: Kind) -> Wakes:
    """Return a function that wakes the controlling owner of an object, if its kind is `kind`."""

    def wakes(obj: Manifest, _: World) -> Iterable[Ref]:
        owner = controller_of(obj)
        if owner is None or not is_owned_as(owner, kind):
            return ()
        return (Ref(kind, namespace_of(obj) if kind.namespaced else "", str(owner["name"])),)

    return wakes
