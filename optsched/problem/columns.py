"""Encode node labels and taints as integer columns, so that each distinct value is tested once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.selectors import NodeSelector, NodeTerm, Requirement, Taint
    from optsched.cluster.snapshot import Node
    from optsched.problem.arrays import I64, Bool

NODE_NAME = "metadata.name"


class NodeColumns:
    """Node labels and taints as integer columns, each computed when first read and then cached.

    All returned arrays have shape (N,).
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._columns: dict[str, tuple[I64, list[str | None]]] = {}
        self._accepted: dict[Requirement, Bool] = {}
        self._taints: tuple[I64, list[tuple[Taint, ...]]] | None = None

    def codes(self, key: str) -> tuple[I64, list[str | None]]:
        """Return each node's label value as an index (N,) into a list of values, and that list.

        None in the list stands for an absent label.
        """
        if key not in self._columns:
            number: dict[str | None, int] = {}
            codes = [number.setdefault(n.labels.get(key), len(number)) for n in self._nodes]
            self._columns[key] = (np.array(codes, np.int64), list(number))
        return self._columns[key]

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
        if requirement not in self._accepted:
            codes, values = self.codes(requirement.key)
            answer = np.array([requirement.accepts(v) for v in values], np.bool_)
            self._accepted[requirement] = answer[codes] if len(values) else np.zeros(0, np.bool_)
        return self._accepted[requirement]

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
            chosen &= np.array([requirement.accepts(n.name) for n in self._nodes], np.bool_)
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
        kept = NodeColumns(nodes)
        kept._columns, kept._accepted, kept._taints = self._columns, self._accepted, self._taints
        return kept
