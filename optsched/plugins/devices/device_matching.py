"""Allocate the devices of one node to ResourceClaims.

A claim has one or more alternatives (`firstAvailable`). An alternative consists of requests for a
number of devices, and may constrain the chosen devices. If every claim has one alternative without
constraints, the allocation is a bipartite matching. Otherwise a backtracking search restricts the
eligible devices of one claim after another, and computes a matching in each step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.dra_devices import (
        Attribute,
        DeviceClaimRequest,
        Devices,
        PooledDevice,
    )

MOST_DEVICES = 32
"""Maximum number of devices per claim (Kubernetes: `AllocationResultsMaxSize`)."""


class Demand(NamedTuple):
    """The number of devices that a request needs, and the indices of the eligible devices."""

    places: tuple[int, ...]
    number: int
    request: str = ""


class Bond(NamedTuple):
    """A constraint on one attribute: its values on the chosen devices are equal, or all distinct.

    The constraint applies to the devices of the requests whose indices are in `demands`. `value_of`
    maps each device to a number that stands for its attribute value, or to -1 if the device lacks
    the attribute. Nodes with equal devices have equal `Bond` objects.
    """

    is_distinct: bool
    demands: tuple[int, ...]
    value_of: tuple[int, ...]


class Option(NamedTuple):
    """One alternative of a claim: its device requests, and constraints on the chosen devices."""

    demands: tuple[Demand, ...]
    bonds: tuple[Bond, ...] = ()

    @property
    def number(self) -> int:
        """The total number of devices that the alternative needs."""
        return sum(demand.number for demand in self.demands)


# --- options -------------------------------------------------------------------------------------


def options_of(devices: Devices, node: str, claim: DeviceClaimRequest) -> tuple[Option, ...]:
    """Return the alternatives of a claim that a node can satisfy if all its devices are idle."""
    on_node = devices.on_node.get(node, ())
    value_of = [_number_values(on_node, each.attribute) for each in claim.constraints]
    found: list[Option] = []
    for variant in product(*(need.variants for need in claim.needs)):
        demands = [Demand(*devices.choices(node, need), need.name) for need in variant]
        bonds: list[Bond] = []
        for constraint, values in zip(claim.constraints, value_of, strict=True):
            bound = tuple(i for i, need in enumerate(variant) if constraint.binds(need.name))
            for i in bound:
                kept = tuple(p for p in demands[i].places if values[p] >= 0)
                demands[i] = demands[i]._replace(places=kept)
            bonds.append(Bond(constraint.is_distinct, bound, values))
        option = Option(tuple(demands), tuple(bonds))
        if option.number <= MOST_DEVICES and all(len(d.places) >= d.number for d in demands):
            found.append(option)
    return tuple(found)


def _number_values(devices: Sequence[PooledDevice], attribute: str) -> tuple[int, ...]:
    """Return a number for the attribute value of each device; -1 if the device has no value."""
    numbers: dict[tuple[str, Attribute], int] = {}
    found: list[int] = []
    for device in devices:
        value = dict(device.attributes).get(attribute)
        if value is None:
            found.append(-1)
            continue
        # Values of different types differ, even if Python compares them as equal.
        found.append(numbers.setdefault((type(value).__name__, value), len(numbers)))
    return tuple(found)


# --- allocation ----------------------------------------------------------------------------------


def match_places(demands: Sequence[Demand], free: set[int]) -> list[list[int]] | None:
    """Return the indices of the devices matched to each request, or None if no matching exists.

    The matching uses augmenting paths (Kuhn's algorithm).
    """
    owner: dict[int, int] = {}

    def augment_path(demand: int, seen: set[int]) -> bool:
        for place in demands[demand].places:
            if place in free and place not in seen:
                seen.add(place)
                if place not in owner or augment_path(owner[place], seen):
                    owner[place] = demand
                    return True
        return False

    for demand, each in enumerate(demands):
        if not all(augment_path(demand, set()) for _ in range(each.number)):
            return None
    found: list[list[int]] = [[] for _ in demands]
    for place in sorted(owner):
        found[owner[place]].append(place)
    return found


Grant = list[tuple[str, int]]
"""(request name, device index) pairs of the devices allocated to a claim."""


class OutOfStepsError(Exception):
    """Raised when a search for devices exceeds its step limit."""


@dataclass(eq=False)
class Steps:
    """The step budget of device searches; a step is one matched request or one variant tried.

    Attributes
    ----------
    left
        Number of remaining steps; negative after the budget is exceeded.
    num_cut
        Number of searches that a step limit stopped without a result, by limit: `search` or
        `session`.

    """

    left: int
    num_cut: Counter[str] = field(default_factory=Counter, init=False)

    def spend(self, number: int = 1) -> None:
        """Subtract `number` steps; raise `OutOfStepsError` if fewer steps remain."""
        self.left -= number
        if self.left < 0:
            raise OutOfStepsError


KnownResult = tuple[tuple[tuple[str, int], ...], ...] | None


def allocate_devices(
    claims: Sequence[Sequence[Option]], free: set[int], session: Steps | None = None
) -> list[Grant] | None:
    """Return (request name, device index) pairs per claim, or None if too few devices are idle.

    A search takes at most `STEPS_OF_SEARCH` steps and at most the remaining steps of the session.
    If a step limit stops the search, the result is None. Results are cached for later sessions.
    """
    if not any(map(_is_open, claims)):
        return _Search(claims, free, Steps(STEPS_OF_SEARCH)).result()
    key = (tuple(map(tuple, claims)), frozenset(free))
    if key not in _known:
        is_cut = False
        steps = Steps(STEPS_OF_SEARCH if session is None else min(STEPS_OF_SEARCH, session.left))
        before = steps.left
        try:
            found = _Search(claims, free, steps).result()
        except OutOfStepsError:
            found, is_cut = None, True
        if session is not None:
            session.left -= before - max(steps.left, 0)
        if found is None and steps.left < 0 and before < STEPS_OF_SEARCH:
            # The session's step limit stopped the search, so there is no result to cache.
            if session is not None:
                session.num_cut["session"] += 1
            return None
        if len(_known) >= MOST_KNOWN:
            oldest = next(iter(_known))
            del _known[oldest]
            _cut.discard(oldest)
        _known[key] = None if found is None else tuple(map(tuple, found))
        (_cut.add if is_cut else _cut.discard)(key)
    if session is not None and key in _cut:
        session.num_cut["search"] += 1
    known = _known[key]
    return None if known is None else [list(grant) for grant in known]


STEPS_OF_SEARCH = 20_000
STEPS_OF_SESSION = 200_000
"""Maximum number of steps of all searches in one session, about one second in total."""
MOST_KNOWN = 4096
_known: dict[tuple[tuple[tuple[Option, ...], ...], frozenset[int]], KnownResult] = {}
"""Cached search results; the key contains all inputs: the claims and the idle devices."""
_cut: set[tuple[tuple[tuple[Option, ...], ...], frozenset[int]]] = set()
"""Keys of the cached searches that stopped at the limit `STEPS_OF_SEARCH`; they have no result."""


class _Search:
    """A backtracking search that chooses a variant of each claim (see `_expand_bonds`)."""

    def __init__(self, claims: Sequence[Sequence[Option]], free: set[int], steps: Steps) -> None:
        self._steps = steps
        self._claims = claims
        self._free = free
        self._open = [a for a, options in enumerate(claims) if _is_open(options)]
        self._demands: dict[int, tuple[Demand, ...]] = {
            a: options[0].demands for a, options in enumerate(claims) if not _is_open(options)
        }
        # By claim: an iterator over the variants that are not computed yet, and the computed
        # variants.
        self._variants: dict[
            int, tuple[Iterator[tuple[Demand, ...]], list[tuple[Demand, ...]]]
        ] = {}
        self._at: dict[int, int] = {}

    def result(self) -> list[Grant] | None:
        """Return (request name, device index) pairs per claim, or None if no allocation exists."""
        if not self._succeeds(0):
            return None
        found = [list[tuple[str, int]]() for _ in self._claims]
        chosen = ((claim, d) for claim in sorted(self._demands) for d in self._demands[claim])
        for (claim, demand), places in zip(chosen, self._match_chosen() or (), strict=True):
            found[claim] += ((demand.request, place) for place in places)
        return found

    def _succeeds(self, first: int) -> bool:
        if first == len(self._open):
            return first > 0 or self._match_chosen() is not None
        claim = self._open[first]
        key = id(self._claims[claim])
        if key not in self._variants:
            expanded = (
                demands
                for option in self._claims[claim]
                for demands in _expand_bonds(option, self._free, self._steps)
            )
            self._variants[key] = expanded, []
        # Equal claims are interchangeable, so a claim skips variants with a lower index than the
        # variant of the preceding equal claim.
        before = self._open[first - 1] if first else -1
        is_equal = first > 0 and self._claims[before] is self._claims[claim]
        at = self._at[before] if is_equal else 0
        unread, known = self._variants[key]
        while True:
            if at == len(known):
                variant = next(unread, None)
                if variant is None:
                    break
                known.append(variant)
            self._demands[claim], self._at[claim] = known[at], at
            if self._match_chosen() is not None and self._succeeds(first + 1):
                return True
            at += 1
        self._demands.pop(claim, None)
        return False

    def _match_chosen(self) -> list[list[int]] | None:
        demands = [d for claim in sorted(self._demands) for d in self._demands[claim]]
        if self._open:
            self._steps.spend(1 + len(demands))
        return match_places(demands, self._free)


def _is_open(options: Sequence[Option]) -> bool:
    """Return whether a claim has alternatives or constraints, and therefore needs a search."""
    return len(options) != 1 or bool(options[0].bonds)


def _expand_bonds(option: Option, free: set[int], steps: Steps) -> Iterator[tuple[Demand, ...]]:
    """Yield the variants of an alternative; each allows only devices that meet the constraints."""
    same = [bond for bond in option.bonds if not bond.is_distinct]
    values = [sorted({value for value in bond.value_of if value >= 0}) for bond in same]
    for chosen in product(*values):
        steps.spend()
        demands = [
            demand._replace(places=tuple(p for p in demand.places if p in free))
            for demand in option.demands
        ]
        for bond, value in zip(same, chosen, strict=True):
            for i in bond.demands:
                kept = tuple(p for p in demands[i].places if bond.value_of[p] == value)
                demands[i] = demands[i]._replace(places=kept)
        if all(len(demand.places) >= demand.number for demand in demands):
            distinct = [bond for bond in option.bonds if bond.is_distinct]
            yield from _expand_distinct(demands, distinct, steps)


def _expand_distinct(
    demands: Sequence[Demand], bonds: Sequence[Bond], steps: Steps
) -> Iterator[tuple[Demand, ...]]:
    """Yield the requests, limited to devices that meet the constraints on distinct values."""
    tied = sorted({i for bond in bonds for i in bond.demands})
    if not tied:
        yield tuple(demands)
        return
    steps.spend(len(bonds))
    for bond in bonds:
        # The eligible devices must have enough distinct attribute values.
        values = [
            Demand(tuple(sorted({bond.value_of[p] for p in demands[i].places})), demands[i].number)
            for i in bond.demands
        ]
        if match_places(values, {value for each in values for value in each.places}) is None:
            return
    taken: dict[int, tuple[int, ...]] = {}

    def choose(at: int) -> Iterator[tuple[Demand, ...]]:
        if at == len(tied):
            yield tuple(w._replace(places=taken.get(i, w.places)) for i, w in enumerate(demands))
            return
        demand = tied[at]
        binding = [bond for bond in bonds if demand in bond.demands]
        for places in combinations(demands[demand].places, demands[demand].number):
            steps.spend()
            taken[demand] = places
            values_of = (
                [bond.value_of[place] for i in bond.demands for place in taken.get(i, ())]
                for bond in binding
            )
            if all(len(set(values)) == len(values) for values in values_of):
                yield from choose(at + 1)
        taken.pop(demand, None)

    yield from choose(0)
