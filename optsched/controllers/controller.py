"""Controllers: the kinds that each controller reconciles and reads, and what wakes it."""

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

    `values` returns an object's index values, which must depend only on the object.
    """

    kind: Kind
    name: str
    values: Callable[[Manifest], Iterable[str]]


class World(Protocol):
    """The last observed state of all objects; callers must not change the objects."""

    @property
    def now_ms(self) -> int:
        """The current time in milliseconds since the Unix epoch."""

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None if it does not exist.

        `namespace` is empty for cluster-scoped kinds.
        """

    def listed(self, kind: Kind, namespace: str | None = None) -> Collection[Manifest]:
        """Return the objects of a kind in a namespace, or in all namespaces if it is None."""

    def owned_by(self, kind: Kind, owner: Kind, uid: str) -> Collection[Manifest]:
        """Return the objects of a kind whose controlling owner has the given kind and UID.

        A reference that combines the owner's UID with another kind is forged: admission reviews
        only references that name the owner's kind.
        """

    def list_indexed(self, index: Index, value: str) -> Collection[Manifest]:
        """Return the objects that an index lists under a value.

        The controller must declare the index.
        """

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the metadata of an object that no watch covers.

        It is known for a few seconds after a creation failed because the object already existed.
        """

    def is_answered(self, question: Question) -> bool:
        """Return whether the server at the address of a probe has answered."""

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        """Return the last reply of a fabric server, or None if there is none yet."""


Reconcile: TypeAlias = "Callable[[Manifest, World], Effects]"
Decide: TypeAlias = "Callable[[Ref, World], Effects]"
Wakes: TypeAlias = "Callable[[Manifest, World], Iterable[Ref]]"


@dataclass(frozen=True, slots=True)
class Scope:
    """Restricts which objects of a kind are watched; controllers never read the others.

    `namespace` and `name` are those of the watched objects, and `label` is a label key that they
    have. An empty string does not restrict anything.
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
    """A controller for the objects of one kind.

    Attributes
    ----------
    name
        The name in `--controllers`; several controllers may share a name.
    kind
        The kind of the objects that the controller reconciles.
    decide
        Returns the effects for an object, which may not exist; see `existing`.
    wakes
        For each kind, a function that returns the objects to reconcile after a change. It is called
        with the object before and after the change, or with its last state after a deletion. An
        object of the controller's own kind always wakes itself.
    indexes
        The indexes that the controller passes to `World.list_indexed`.
    reads
        Further kinds that the controller reads; their changes wake no object.
    facets
        For each kind, a function that returns the relevant fields. Changes of other fields wake no
        object; for example, every node updates its heartbeat every few seconds.
    scopes
        For each kind, the objects that the controller reads. Kinds that are not listed are read
        completely.
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
    """Return the scopes of each watched kind; `WHOLE` replaces all other scopes of the kind."""
    found: dict[Kind, dict[Scope, None]] = {}
    for controller in controllers:
        for kind in controller.kinds:
            found.setdefault(kind, {})[controller.scopes.get(kind, WHOLE)] = None
    return {kind: (WHOLE,) if WHOLE in scopes else tuple(scopes) for kind, scopes in found.items()}


def existing(
    kind: Kind, reconcile: Reconcile, if_missing: Decide = lambda _ref, _world: ()
) -> Decide:
    """Return a `Decide` function that reconciles an object if it exists.

    `if_missing` decides if the object does not exist; by default, there are no effects.
    """

    def decide(ref: Ref, world: World) -> Effects:
        obj = world.get(kind, ref.namespace, ref.name)
        return if_missing(ref, world) if obj is None else reconcile(obj, world)

    return decide


def owner_wakes(kind: Kind) -> Wakes:
    """Return a function that wakes an object's controlling owner, if it has the given kind."""

    def wakes(obj: Manifest, _: World) -> Iterable[Ref]:
        owner = controller_of(obj)
        if owner is None or not is_owned_as(owner, kind):
            return ()
        return (Ref(kind, namespace_of(obj) if kind.namespaced else "", str(owner["name"])),)

    return wakes
