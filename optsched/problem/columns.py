"""Node labels, node taints and gang properties as integer columns.

Rules test each distinct value once. An unchanged gang keeps its cached values in the next problem.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from optsched.cluster.selectors import Operator
from optsched.problem.arrays import first_positions, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from optsched.cluster.selectors import LabelSelector, NodeSelector, NodeTerm, Requirement, Taint
    from optsched.cluster.snapshot import Node
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.shapes import GangRow, Stake


@dataclass(frozen=True, eq=False)
class _Column:
    """The values of one label: `codes` (N,) is the index of each object's value in `values`."""

    codes: I64
    values: list[str | None]

    @classmethod
    def from_values(cls, values: Iterable[str | None]) -> _Column:
        number: dict[str | None, int] = {}
        codes = [number.setdefault(value, len(number)) for value in values]
        return cls(np.array(codes, np.int64), list(number))

    @cached_property
    def _code_of(self) -> dict[str | None, int]:
        return {value: code for code, value in enumerate(self.values)}

    def accepts(self, requirement: Requirement) -> Bool:
        if requirement.operator in {Operator.IN, Operator.NOT_IN}:
            named = [self._code_of[v] for v in requirement.values if v in self._code_of]
            answer = np.zeros(len(self.values), np.bool_)
            answer[named] = True
            if requirement.operator is Operator.NOT_IN:
                answer = ~answer
        elif requirement.operator in {Operator.EXISTS, Operator.DOES_NOT_EXIST}:
            answer = np.full(len(self.values), requirement.operator is Operator.EXISTS)
            if None in self._code_of:
                answer[self._code_of[None]] ^= True
        else:
            answer = np.array([requirement.accepts(v) for v in self.values], np.bool_)
        return answer[self.codes]


class LabelColumns:
    """The labels of L objects as integer columns, each computed when first read."""

    def __init__(self, labels: Sequence[Mapping[str, str]]) -> None:
        self._labels = labels
        self._keys = frozenset[str]().union(*labels)
        self._columns: dict[str, _Column] = {}

    def selects(self, selector: LabelSelector) -> Bool:
        """Return the mask (L,) of the objects that a selector selects."""
        chosen = np.ones(len(self._labels), np.bool_)
        for requirement in selector.requirements:
            key = requirement.key
            if key in self._keys:
                if key not in self._columns:
                    values = [labels.get(key) for labels in self._labels]
                    self._columns[key] = _Column.from_values(values)
                chosen &= self._columns[key].accepts(requirement)
            elif not requirement.accepts(None):
                return np.zeros(len(self._labels), np.bool_)
        return chosen


class NodeColumns:
    """Node labels and taints as integer columns, each computed when first read and then cached.

    All returned arrays have shape (N,). If a session does not read the cached mask of a
    requirement, the mask is dropped. Masks for labels that no node has are not cached.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._columns: dict[str, _Column] = {}
        self._accepted: dict[Requirement, Bool] = {}
        self._accepted_before: dict[Requirement, Bool] = {}
        self._taints: tuple[I64, list[tuple[Taint, ...]]] | None = None

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset().union(*(n.labels for n in self._nodes))

    @cached_property
    def _absent(self) -> _Column:
        return _Column.from_values([None] * len(self._nodes))

    @cached_property
    def _names(self) -> _Column:
        return _Column.from_values([n.name for n in self._nodes])

    def _column(self, key: str) -> _Column:
        if key not in self._keys:
            return self._absent
        if key not in self._columns:
            self._columns[key] = _Column.from_values([n.labels.get(key) for n in self._nodes])
        return self._columns[key]

    def codes(self, key: str) -> tuple[I64, list[str | None]]:
        """Return each node's index (N,) in a list of the label's values, and this list.

        The list contains None if a node lacks the label.
        """
        column = self._column(key)
        return column.codes, column.values

    def domains(self, key: str) -> tuple[I64, int]:
        """Return each node's domain (N,) and the number of domains.

        Nodes with equal values of the label are in one domain. Nodes without the label get -1.
        """
        codes, values = self.codes(key)
        if None not in values:
            return codes, len(values)
        absent = values.index(None)
        domain = np.where(codes > absent, codes - 1, codes)
        domain[codes == absent] = -1
        return domain, len(values) - 1

    def accepts(self, requirement: Requirement) -> Bool:
        """Return a mask (N,) of the nodes whose labels meet a requirement."""
        if requirement.key not in self._keys:
            return self._absent_accepts[requirement.accepts(None)]
        if requirement not in self._accepted:
            known = self._accepted_before.get(requirement)
            if known is None:
                known = self._column(requirement.key).accepts(requirement)
            self._accepted[requirement] = known
        return self._accepted[requirement]

    @cached_property
    def _absent_accepts(self) -> tuple[Bool, Bool]:
        number = len(self._nodes)
        return np.zeros(number, np.bool_), np.ones(number, np.bool_)

    def selects(self, selector: NodeSelector) -> Bool:
        """Return a mask (N,) of the nodes that match at least one term of a node selector."""
        chosen = np.zeros(len(self._nodes), np.bool_)
        for term in selector.terms:
            chosen |= self.matches(term)
        return chosen

    def matches(self, term: NodeTerm) -> Bool:
        """Return a mask (N,) of the nodes that match a node selector term.

        An empty term selects no node.
        """
        if not term.labels and not term.names:
            return np.zeros(len(self._nodes), np.bool_)
        chosen = np.ones(len(self._nodes), np.bool_)
        for requirement in term.labels:
            chosen &= self.accepts(requirement)
        for requirement in term.names:
            chosen &= self._names.accepts(requirement)
        return chosen

    def taints(self) -> tuple[I64, list[tuple[Taint, ...]]]:
        """Return each node's index (N,) in a list of taint sets, and this list.

        The taint set of a cordoned node includes the unschedulable taint.
        """
        if self._taints is None:
            number: dict[tuple[Taint, ...], int] = {}
            codes = [number.setdefault(n.marks, len(number)) for n in self._nodes]
            self._taints = (np.array(codes, np.int64), list(number))
        return self._taints

    def carry_over(self, nodes: Sequence[Node]) -> NodeColumns:
        """Return the cached columns for nodes with the same names, labels and taints."""
        kept = copy(self)
        kept._nodes = nodes
        kept._accepted_before, kept._accepted = self._accepted, {}
        return kept


_Array = TypeVar("_Array", bound="npt.NDArray[np.generic]")
_Key = TypeVar("_Key")
_Object = TypeVar("_Object")
_STAKE: Callable[[GangRow], Stake] = attrgetter("stake")
_FEW_VALUES = 64
"""If the range of the values has at most this width, `group_values` counts instead of sorting."""


class GangColumns:
    """Properties of gangs as arrays, each computed when first read and then cached.

    All arrays are read-only and have one element per gang row (G,). Each method takes a pure
    function of a gang row. The function is also the cache key, so callers pass the same function
    object in each session.

    Attributes
    ----------
    index_before
        (G,) index of the same gang row in the previous columns, or -1 for a new row.

    """

    def __init__(
        self,
        rows: tuple[GangRow, ...],
        previous: GangColumns | None = None,
        index_before: I64 | None = None,
    ) -> None:
        """Copy the values of known rows from `previous`; compute `index_before` if it is None."""
        self._rows = rows
        self._numbers: dict[Callable[[GangRow], int], I64] = {}
        self._flags: dict[Callable[[GangRow], bool], Bool] = {}
        self._codes: dict[Callable[[GangRow], object], tuple[I64, list[object]]] = {}
        self.index_before = np.full(len(rows), -1, np.int64)
        if previous is None or not previous._rows:
            return
        before = find_objects(rows, previous._rows) if index_before is None else index_before
        self.index_before = before
        fresh = np.flatnonzero(before < 0)
        new_rows = [rows[i] for i in fresh.tolist()]

        def carry_over(values: _Array, found: list[int]) -> _Array:
            carried = cast("_Array", values[before])
            carried[fresh] = found
            frozen(carried)
            return carried

        for number_of, numbers in previous._numbers.items():
            self._numbers[number_of] = carry_over(numbers, list(map(number_of, new_rows)))
        for is_so, flags in previous._flags.items():
            self._flags[is_so] = carry_over(flags, list(map(is_so, new_rows)))
        for object_of, (codes, objects) in previous._codes.items():
            known = list(objects)
            found = _number_objects(list(map(object_of, new_rows)), known)
            self._codes[object_of] = _in_order(carry_over(codes, found), known)

    @property
    def stakes(self) -> tuple[I64, list[Stake]]:
        """Each gang row's index (G,) in a list of distinct `Stake` objects, and this list."""
        return self.codes(_STAKE)

    def numbers(self, number_of: Callable[[GangRow], int]) -> I64:
        """Return `number_of(row)` for each gang row, as an array (G,)."""
        return _read(self._numbers, number_of, map(number_of, self._rows), np.int64)

    def flags(self, is_so: Callable[[GangRow], bool]) -> Bool:
        """Return `is_so(row)` for each gang row, as a mask (G,)."""
        return _read(self._flags, is_so, map(is_so, self._rows), np.bool_)

    def codes(
        self, object_of: Callable[[GangRow], _Object], chosen: Bool | None = None
    ) -> tuple[I64, list[_Object]]:
        """Return the index (G,) of `object_of(row)` in a list of distinct objects, and this list.

        Objects are compared by identity and listed in the order of their first use. Gangs outside
        the mask `chosen` (G,) have index -1.
        """
        if object_of not in self._codes:
            known: list[object] = []
            found = _number_objects(list(map(object_of, self._rows)), known)
            self._codes[object_of] = _in_order(np.array(found, np.int64), known)
        codes, objects = cast("tuple[I64, list[_Object]]", self._codes[object_of])
        if chosen is None:
            return codes, objects
        codes_of_chosen = codes[chosen]
        groups, first = group_values(codes_of_chosen)
        codes = np.full(len(codes), -1, np.int64)
        codes[chosen] = groups
        return codes, [objects[i] for i in codes_of_chosen[first].tolist()]


def find_objects(objects: Sequence[object], known: Sequence[object]) -> I64:
    """Return the index (m,) of each object in `known`, or -1 if `known` lacks the object."""
    # `id(each)` is a safe key, because both lists keep their objects in memory.
    index_of = dict(zip(map(id, known), range(len(known)), strict=True))
    return np.fromiter(map(index_of.get, map(id, objects), repeat(-1)), np.int64, len(objects))


def _number_objects(objects: Sequence[object], known: list[object]) -> list[int]:
    """Return the index of each object in `known`, appending new objects to `known`."""
    # `id(each)` is a safe key because the list keeps its objects alive.
    number = dict(zip(map(id, known), range(len(known)), strict=True))
    found = []
    for each in objects:
        index = number.setdefault(id(each), len(known))
        if index == len(known):
            known.append(each)
        found.append(index)
    return found


def _in_order(codes: I64, objects: Sequence[object]) -> tuple[I64, list[object]]:
    """Renumber the objects and their codes in the order of first use."""
    groups, first = group_values(codes)
    frozen(groups)
    return groups, [objects[i] for i in codes[first].tolist()]


def _read(
    known: dict[_Key, _Array], key: _Key, values: Iterable[int], dtype: type[np.generic]
) -> _Array:
    """Return the cached array of a key; cache `values` as a read-only array if none is cached."""
    if key not in known:
        found = np.array(list(values), dtype)
        frozen(found)
        known[key] = cast("_Array", found)
    return known[key]


def group_values(values: I64) -> tuple[I64, I64]:
    """Return each value's group index (n,), and the index of each group's first element.

    Equal values form a group. Groups are numbered in order of their first elements.
    """
    number = len(values)
    low = int(values.min()) if number else 0
    width = int(values.max()) - low + 1 if number else 0
    if width > 2 * number + _FEW_VALUES:
        _, at_first, at = np.unique(values, return_index=True, return_inverse=True)
    else:
        # Counting is faster than sorting if the range of the values is small.
        at = values - low
        at_first = first_positions(at, width)
    first: I64 = np.sort(at_first[at_first < number])
    rank = np.empty(len(at_first), np.int64)
    rank[at[first]] = np.arange(len(first))
    return rank[at], first
