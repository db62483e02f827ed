"""How devices of one node can be dealt out to what claims ask for.

A claim asks in one of several ways (alternatives, `firstAvailable`), each a number of devices of
some for every request, under constraints between them. Without alternatives and constraints that is
a matching; with them, ways are tried in order, and every step is a matching again.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.domain.devices import (
        Attribute,
        DeviceAsk,
        DeviceConstraint,
        DeviceNeed,
        Devices,
        PooledDevice,
    )

MOST_DEVICES = 32
"""Devices that one claim may get (`AllocationResultsMaxSize`)."""


class Want(NamedTuple):
    """So many devices of a node for a request, each one of those at some places."""

    places: tuple[int, ...]
    number: int
    request: str = ""


class Bond(NamedTuple):
    """A constraint: wants by their number, and the value of each place that they may take."""

    is_distinct: bool
    wants: tuple[int, ...]
    value_of: Mapping[int, tuple[str, Attribute]]


class Option(NamedTuple):
    """One way to serve a claim."""

    wants: tuple[Want, ...]
    bonds: tuple[Bond, ...] = ()

    @property
    def number(self) -> int:
        """Devices that it takes."""
        return sum(want.number for want in self.wants)


# --- what would do -------------------------------------------------------------------------------


def options_of(devices: Devices, node: str, ask: DeviceAsk) -> tuple[Option, ...]:
    """The ways to serve a claim on a node if all its devices were free, in order."""
    here = devices.on_node.get(node, ())
    ways = product(*(need.variants for need in ask.needs))
    found = (_option(devices, (node, here), way, ask.constraints) for way in ways)
    return tuple(
        option
        for option in found
        if option.number <= MOST_DEVICES
        and all(len(want.places) >= want.number for want in option.wants)
    )


def _option(
    devices: Devices,
    at: tuple[str, Sequence[PooledDevice]],
    way: Sequence[DeviceNeed],
    constraints: Sequence[DeviceConstraint],
) -> Option:
    node, here = at
    wants = [Want(*devices.choices(node, need), need.name) for need in way]
    bonds: list[Bond] = []
    for constraint in constraints:
        bound = tuple(i for i, need in enumerate(way) if constraint.binds(need.name))
        given = ((p, dict(d.attributes).get(constraint.attribute)) for p, d in enumerate(here))
        # Values of different types are different, also where Python takes them for equal.
        value_of = {p: (type(value).__name__, value) for p, value in given if value is not None}
        for i in bound:
            kept = tuple(p for p in wants[i].places if p in value_of)
            wants[i] = wants[i]._replace(places=kept)
        bonds.append(Bond(constraint.is_distinct, bound, value_of))
    return Option(tuple(wants), tuple(bonds))


# --- dealing -------------------------------------------------------------------------------------


def deal(wants: Sequence[Want], free: set[int]) -> list[list[int]] | None:
    """Free places for every want, each place once; None where that can not be.

    Augmenting paths (Kuhn): a place that is taken is given up where its owner finds another.
    """
    owner: dict[int, int] = {}

    def finds(want: int, seen: set[int]) -> bool:
        for place in wants[want].places:
            if place in free and place not in seen:
                seen.add(place)
                if place not in owner or finds(owner[place], seen):
                    owner[place] = want
                    return True
        return False

    for want, each in enumerate(wants):
        if not all(finds(want, set()) for _ in range(each.number)):
            return None
    found: list[list[int]] = [[] for _ in wants]
    for place in sorted(owner):
        found[owner[place]].append(place)
    return found


Got = list[tuple[str, int]]
"""(request, place) of all devices that a claim gets."""


def deal_out(asks: Sequence[Sequence[Option]], free: set[int]) -> list[Got] | None:
    """What each claim gets of the free places; None where they do not do for all of them."""
    search = _Search(asks, free)
    return search.found() if search.succeeds(0) else None


class _Search:
    """Claims that leave a choice one after the other, the others with them all the time."""

    def __init__(self, asks: Sequence[Sequence[Option]], free: set[int]) -> None:
        self._asks = asks
        self._free = free
        self._open = [a for a, options in enumerate(asks) if _is_open(options)]
        self._wants: dict[int, tuple[Want, ...]] = {
            a: options[0].wants for a, options in enumerate(asks) if not _is_open(options)
        }
        self._ways: dict[int, list[tuple[Want, ...]]] = {}
        self._at: dict[int, int] = {}

    def succeeds(self, first: int) -> bool:
        """Whether the claims from one on find devices besides those that have chosen."""
        if first == len(self._open):
            return first > 0 or self._dealt() is not None
        ask = self._open[first]
        ways = self._ways_of(ask)
        # Of claims that ask for the same, it does not matter which gets what.
        before = self._open[first - 1] if first else -1
        alike = first > 0 and self._asks[before] is self._asks[ask]
        for i in range(self._at[before] if alike else 0, len(ways)):
            self._wants[ask], self._at[ask] = ways[i], i
            if self._dealt() is not None and self.succeeds(first + 1):
                return True
        self._wants.pop(ask, None)
        return False

    def found(self) -> list[Got]:
        """What each claim gets, after a success."""
        found: list[Got] = [[] for _ in self._asks]
        for (ask, want), places in zip(self._listed(), self._dealt() or (), strict=True):
            found[ask] += ((want.request, place) for place in places)
        return found

    def _listed(self) -> list[tuple[int, Want]]:
        return [(ask, want) for ask in sorted(self._wants) for want in self._wants[ask]]

    def _dealt(self) -> list[list[int]] | None:
        return deal([want for _, want in self._listed()], self._free)

    def _ways_of(self, ask: int) -> list[tuple[Want, ...]]:
        key = id(self._asks[ask])
        if key not in self._ways:
            options = self._asks[ask]
            self._ways[key] = [w for option in options for w in _ways(option, self._free)]
        return self._ways[key]


def _is_open(options: Sequence[Option]) -> bool:
    return len(options) != 1 or bool(options[0].bonds)


def _ways(option: Option, free: set[int]) -> Iterator[tuple[Want, ...]]:
    """An option without its bonds, once for each way in which they can hold."""
    same = [bond for bond in option.bonds if not bond.is_distinct]
    values = [list(dict.fromkeys(bond.value_of.values())) for bond in same]
    for chosen in product(*values):
        wants = [
            want._replace(places=tuple(p for p in want.places if p in free))
            for want in option.wants
        ]
        for bond, value in zip(same, chosen, strict=True):
            for i in bond.wants:
                kept = tuple(p for p in wants[i].places if bond.value_of[p] == value)
                wants[i] = wants[i]._replace(places=kept)
        if all(len(want.places) >= want.number for want in wants):
            yield from _apart(wants, [bond for bond in option.bonds if bond.is_distinct])


def _apart(wants: Sequence[Want], bonds: Sequence[Bond]) -> Iterator[tuple[Want, ...]]:
    """Wants with the very places that they take, where bonds keep these apart."""
    tied = sorted({i for bond in bonds for i in bond.wants})
    if not tied:
        yield tuple(wants)
        return
    for sets in product(*(combinations(wants[i].places, wants[i].number) for i in tied)):
        taken = dict(zip(tied, sets, strict=True))
        if all(_is_apart(bond, taken) for bond in bonds):
            yield tuple(
                want._replace(places=taken[i]) if i in taken else want
                for i, want in enumerate(wants)
            )


def _is_apart(bond: Bond, taken: Mapping[int, Sequence[int]]) -> bool:
    values = [bond.value_of[place] for i in bond.wants for place in taken[i]]
    return len(set(values)) == len(values)
