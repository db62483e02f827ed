"""The controller interface: what a controller reconciles, reads and watches."""

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
    """An index of one kind's objects by values other than their names.

    `values` returns the values by which an object is indexed; it may read only this object.
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
        """Return the objects of a kind in a namespace; None stands for all namespaces."""

    def owned_by(self, kind: Kind, owner: Kind, uid: str) -> Collection[Manifest]:
        """Return the objects of a kind whose controlling owner has the given kind and UID.

        Owner references to other kinds are ignored, because admission does not check them.
        """

    def list_indexed(self, index: Index, value: str) -> Collection[Manifest]:
        """Return the objects with the given value in an index.

        The index must be in `Controller.indexes`.
        """

    def unfollowed_metadata(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the metadata of an object that no watch reports, or None if it is unknown.

        If the API server rejects a creation because the name is taken, the metadata of the existing
        object is known for a few seconds.
        """

    def is_answered(self, question: Question) -> bool:
        """Return whether the probed server has answered the probe."""

    def fabric_answer(self, fabric: Fabric) -> FabricAnswer | None:
        """Return the last reply of a fabric server, or None if there is none yet."""


Reconcile: TypeAlias = "Callable[[Manifest, World], Effects]"
Decide: TypeAlias = "Callable[[Ref, World], Effects]"
Wakes: TypeAlias = "Callable[[Manifest, World], Iterable[Ref]]"


@dataclass(frozen=True, slots=True)
class Scope:
    """Restricts which objects of a kind are watched; controllers do not see any other object.

    The watched objects are in `namespace`, are named `name` and have a label with the key `label`.
    An empty string means no restriction.
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
        The kind of objects that the controller reconciles.
    decide
        Returns the effects for an object, which may not exist; see `existing`.
    wakes
        For each kind, a function that returns the objects to reconcile after an object of this kind
        has changed. The functions in `wakes` are called with the old and the new state of a changed
        object, or with the last state of a deleted object. Changed objects of `kind` are always
        reconciled.
    indexes
        The indexes that the controller passes to `World.list_indexed`.
    reads
        Further kinds that the controller reads; changes of their objects start no reconciliation.
    facets
        For each kind, a function that returns the relevant fields of an object. Changes of other
        fields, such as the heartbeat of a node, start no reconciliation.
    scopes
        For each kind, the objects that the controller reads; by default all.
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
    """Return the scopes in which each kind is watched; `WHOLE` replaces all narrower scopes."""
    found: dict[Kind, dict[Scope, None]] = {}
    for controller in controllers:
        for kind in controller.kinds:
            found.setdefault(kind, {})[controller.scopes.get(kind, WHOLE)] = None
    return {kind: (WHOLE,) if WHOLE in scopes else tuple(scopes) for kind, scopes in found.items()}


def existing(
    kind: Kind, reconcile: Reconcile, if_missing: Decide = lambda _ref, _world: ()
) -> Decide:
    """Return a `Decide` function that reconciles an object if it exists.

    If the object does not exist, `if_missing` returns the effects; by default, there are none.
    """

    def decide(ref: Ref, world: World) -> Effects:
        obj = world.get(kind, ref.namespace, ref.name)
        return if_missing(ref, world) if obj is None else reconcile(obj, world)

    return decide


def owner_wakes(kind: Kind) -> Wakes:
    """Return a `Wakes` function that returns an object's controlling owner of the kind `kind`."""

    def wakes(obj: Manifest, _: World) -> Iterable[Ref]:
        owner = controller_of(obj)
        if owner is None or not is_owned_as(owner, kind):
            return ()
        return (Ref(kind, namespace_of(obj) if kind.namespaced else "", str(owner["name"])),)

    return wakes
