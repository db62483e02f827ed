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

    from optsched.cluster.devices import (
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
    """A constraint: wants by their number, and the value of each place.

    value_of: equal numbers for equal values, in order of places; -1 for none. Nodes whose devices
    are alike have equal bonds.
    """

    is_distinct: bool
    wants: tuple[int, ...]
    value_of: tuple[int, ...]


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
        value_of = _values(here, constraint.attribute)
        for i in bound:
            kept = tuple(p for p in wants[i].places if value_of[p] >= 0)
            wants[i] = wants[i]._replace(places=kept)
        bonds.append(Bond(constraint.is_distinct, bound, value_of))
    return Option(tuple(wants), tuple(bonds))


def _values(here: Sequence[PooledDevice], attribute: str) -> tuple[int, ...]:
    numbers: dict[tuple[str, Attribute], int] = {}
    found: list[int] = []
    for device in here:
        value = dict(device.attributes).get(attribute)
        if value is None:
            found.append(-1)
            continue
        # Values of different types are different, also where Python takes them for equal.
        found.append(numbers.setdefault((type(value).__name__, value), len(numbers)))
    return tuple(found)


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


class OutOfStepsError(Exception):
    """A search that was not ended."""


class Steps:
    """What searches may cost: each step puts one want in its place, or tries one way."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, number: int = 1) -> None:
        """Raise OutOfStepsError once nothing is left."""
        self.left -= number
        if self.left < 0:
            raise OutOfStepsError


Dealt = tuple[tuple[tuple[str, int], ...], ...] | None


def deal_out(
    asks: Sequence[Sequence[Option]], free: set[int], session: Steps | None = None
) -> list[Got] | None:
    """What each claim gets of the free places; None where they do not do for all of them.

    Claims that leave a choice are searched for at most `STEPS_OF_SEARCH` steps, and as long as
    those of the session last: then the answer is None. What was found is kept for later sessions.
    """
    if all(map(_is_plain, asks)):
        return _Search(asks, free, Steps(STEPS_OF_SEARCH)).result()
    key = (tuple(map(tuple, asks)), frozenset(free))
    if key not in _known:
        steps = Steps(STEPS_OF_SEARCH if session is None else min(STEPS_OF_SEARCH, session.left))
        before = steps.left
        try:
            found = _Search(asks, free, steps).result()
        except OutOfStepsError:
            found = None
        if session is not None:
            session.left -= before - max(steps.left, 0)
        if found is None and steps.left < 0 and before < STEPS_OF_SEARCH:
            # Only the session has ended, not the search.
            return None
        if len(_known) >= MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = None if found is None else tuple(map(tuple, found))
    known = _known[key]
    return None if known is None else [list(got) for got in known]


STEPS_OF_SEARCH = 20_000
STEPS_OF_SESSION = 200_000
"""Steps of all searches of one session: about a second."""
MOST_KNOWN = 4096
_known: dict[tuple[tuple[tuple[Option, ...], ...], frozenset[int]], Dealt] = {}
"""Results of searches; they follow from their keys."""


class _Search:
    """Claims that leave a choice one after the other, the others with them all the time."""

    def __init__(self, asks: Sequence[Sequence[Option]], free: set[int], steps: Steps) -> None:
        self._steps = steps
        self._asks = asks
        self._free = free
        self._open = [a for a, options in enumerate(asks) if _is_open(options)]
        self._wants: dict[int, tuple[Want, ...]] = {
            a: options[0].wants for a, options in enumerate(asks) if not _is_open(options)
        }
        self._ways: dict[int, _Kept] = {}
        self._at: dict[int, int] = {}

    def result(self) -> list[Got] | None:
        """What each claim gets; None where that can not be."""
        return self.found() if self.succeeds(0) else None

    def succeeds(self, first: int) -> bool:
        """Whether the claims from one on find devices besides those that have chosen."""
        if first == len(self._open):
            return first > 0 or self._dealt() is not None
        ask = self._open[first]
        # Of claims that ask for the same, it does not matter which gets what.
        before = self._open[first - 1] if first else -1
        alike = first > 0 and self._asks[before] is self._asks[ask]
        for i, way in self._ways_of(ask).since(self._at[before] if alike else 0):
            self._wants[ask], self._at[ask] = way, i
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
        wants = [want for _, want in self._listed()]
        if self._open:
            self._steps.spend(1 + len(wants))
        return deal(wants, self._free)

    def _ways_of(self, ask: int) -> _Kept:
        key = id(self._asks[ask])
        if key not in self._ways:
            options = self._asks[ask]
            found = (w for option in options for w in _ways(option, self._free, self._steps))
            self._ways[key] = _Kept(found)
        return self._ways[key]


class _Kept:
    """Ways to serve a claim, each worked out once it is asked for."""

    def __init__(self, source: Iterator[tuple[Want, ...]]) -> None:
        self._source = source
        self._found: list[tuple[Want, ...]] = []

    def since(self, first: int) -> Iterator[tuple[int, tuple[Want, ...]]]:
        """Number and way, from one on."""
        at = first
        while True:
            while at >= len(self._found):
                way = next(self._source, None)
                if way is None:
                    return
                self._found.append(way)
            yield at, self._found[at]
            at += 1


def _is_open(options: Sequence[Option]) -> bool:
    return len(options) != 1 or bool(options[0].bonds)


def _is_plain(options: Sequence[Option]) -> bool:
    return not _is_open(options)


def _ways(option: Option, free: set[int], steps: Steps) -> Iterator[tuple[Want, ...]]:
    """An option without its bonds, once for each way in which they can hold."""
    same = [bond for bond in option.bonds if not bond.is_distinct]
    values = [sorted({value for value in bond.value_of if value >= 0}) for bond in same]
    for chosen in product(*values):
        steps.spend()
        wants = [
            want._replace(places=tuple(p for p in want.places if p in free))
            for want in option.wants
        ]
        for bond, value in zip(same, chosen, strict=True):
            for i in bond.wants:
                kept = tuple(p for p in wants[i].places if bond.value_of[p] == value)
                wants[i] = wants[i]._replace(places=kept)
        if all(len(want.places) >= want.number for want in wants):
            apart = [bond for bond in option.bonds if bond.is_distinct]
            yield from _apart(wants, apart, steps)


def _apart(
    wants: Sequence[Want], bonds: Sequence[Bond], steps: Steps
) -> Iterator[tuple[Want, ...]]:
    """Wants with the very places that they take, where bonds keep these apart."""
    tied = sorted({i for bond in bonds for i in bond.wants})
    if not tied:
        yield tuple(wants)
        return
    steps.spend(len(bonds))
    if not all(_has_values(bond, wants) for bond in bonds):
        return
    taken: dict[int, tuple[int, ...]] = {}

    def choose(at: int) -> Iterator[tuple[Want, ...]]:
        if at == len(tied):
            yield tuple(w._replace(places=taken.get(i, w.places)) for i, w in enumerate(wants))
            return
        want = tied[at]
        mine = [bond for bond in bonds if want in bond.wants]
        for places in combinations(wants[want].places, wants[want].number):
            steps.spend()
            taken[want] = places
            if all(_is_apart(bond, taken) for bond in mine):
                yield from choose(at + 1)
        taken.pop(want, None)

    yield from choose(0)


def _has_values(bond: Bond, wants: Sequence[Want]) -> bool:
    """Whether there are enough different values for all that a bond keeps apart."""
    values = [
        Want(tuple(sorted({bond.value_of[p] for p in wants[i].places})), wants[i].number)
        for i in bond.wants
    ]
    return deal(values, {value for want in values for value in want.places}) is not None


def _is_apart(bond: Bond, taken: Mapping[int, Sequence[int]]) -> bool:
    values = [bond.value_of[place] for i in bond.wants for place in taken.get(i, ())]
    return len(set(values)) == len(values)
