"""Encode node labels and taints as integer columns, so that each distinct value is tested once."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import Operator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.selectors import NodeSelector, NodeTerm, Requirement, Taint
    from optsched.cluster.snapshot import Node
    from optsched.problem.arrays import I64, Bool


@dataclass(frozen=True, eq=False)
class _Column:
    """The values of one label: `codes` (N,) is the index of each node's value in `values`."""

    codes: I64
    values: list[str | None]

    @classmethod
    def from_values(cls, values: Iterable[str | None]) -> _Column:
        """Build the column from each node's value; None stands for an absent label."""
        number: dict[str | None, int] = {}
        codes = [number.setdefault(value, len(number)) for value in values]
        return cls(np.array(codes, np.int64), list(number))

    @cached_property
    def _code_of(self) -> dict[str | None, int]:
        return {value: code for code, value in enumerate(self.values)}

    def accepts(self, requirement: Requirement) -> Bool:
        """Return a mask (N,) of the nodes whose values meet a requirement."""
        if requirement.operator in {Operator.IN, Operator.NOT_IN}:
            named = [self._code_of[v] for v in requirement.values if v in self._code_of]
            answer = np.zeros(len(self.values), np.bool_)
            answer[named] = True
            if requirement.operator is Operator.NOT_IN:
                answer = ~answer
        else:
            answer = np.array([requirement.accepts(v) for v in self.values], np.bool_)
        return answer[self.codes]


class NodeColumns:
    """Node labels and taints as integer columns, each computed when first read and then cached.

    All returned arrays have shape (N,). The cached mask of a requirement is dropped if a session
    does not read it. Masks for labels that no node has are not cached.
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
        """Return each node's label value as an index (N,) into a list of values, and that list.

        None in the list stands for an absent label.
        """
        column = self._column(key)
        return column.codes, column.values

    def domains(self, key: str) -> tuple[I64, int]:
        """Return each node's domain (N,) and the number of domains.

        Each value of the node label is a domain. Nodes without the label have domain -1.
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
        """Return each node's taint set as an index (N,) into a list of taint sets, and that list.

        The taint set of a cordoned node includes the unschedulable taint.
        """
        if self._taints is None:
            number: dict[tuple[Taint, ...], int] = {}
            codes = [number.setdefault(n.marks, len(number)) for n in self._nodes]
            self._taints = (np.array(codes, np.int64), list(number))
        return self._taints

    def carry_over(self, nodes: Sequence[Node]) -> NodeColumns:
        """Return the cached columns for `nodes`; names, labels and taints must be unchanged."""
        kept = copy(self)
        kept._nodes = nodes
        kept._accepted_before, kept._accepted = self._accepted, {}
        return kept
