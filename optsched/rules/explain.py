"""Why a gang waits: the rules' own reasons first, then what nodes lack, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.reasons import Reason, ReasonCode
from optsched.rules.asking import first_entries
from optsched.rules.wording import amount_text, counted
from optsched.units import PODS

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.rules.outcome import Outcome
    from optsched.rules.ruleset import RuleSet

SHOWN = 4
"""Kinds of refusal that a sentence lists."""


def explain_gang(outcome: Outcome, rules: RuleSet, gang: int) -> Reason:
    """Why a gang with pending tasks gets nothing (more) now.

    Parameters
    ----------
    outcome
        The problem and what has been decided: reasons speak of what is left afterwards.
    rules
        The rules that hold.
    gang
        Index on axis G; the gang can be decided on (`Problem.shape_of` is not negative).

    """
    for rule in rules.hard:
        reason = rule.explain(outcome, gang)
        if reason is not None:
            return reason
    asks = [_Ask(outcome, rules, c, role, n) for c, role, n in first_entries(outcome.problem, gang)]
    for ask in asks:
        if ask.most_ever < ask.number:
            return ask.impossible()
    for ask in asks:
        if ask.most_now < ask.number:
            return ask.lacking()
    if not _fit_together(outcome, asks):
        return Reason(
            ReasonCode.FRAGMENTED,
            "each of its roles would find room, but not all of them at once",
        )
    return Reason(
        ReasonCode.OUTRANKED,
        "room is left for it, but the levels of the model put other gangs first",
    )


def _fit_together(outcome: Outcome, asks: list[_Ask]) -> bool:
    """Whether filling node after node, role after role, finds room for all."""
    idle = np.maximum(outcome.idle, 0)
    for ask in asks:
        nodes = np.flatnonzero(ask.open_nodes)
        counts = ask.fits(idle[nodes])
        before = np.cumsum(counts) - counts
        taken = np.clip(ask.number - before, 0, counts)
        idle[nodes] -= taken[:, None] * ask.request
        if taken.sum() < ask.number:
            return False
    return True


@dataclass(frozen=True)
class _Ask:
    """Tasks of one class that a gang asks for at once."""

    outcome: Outcome
    rules: RuleSet
    task_class: int
    role: str
    number: int

    @property
    def problem(self) -> Problem:
        return self.outcome.problem

    @property
    def request(self) -> I64:
        """(R,)."""
        request: I64 = self.problem.classes.request[self.task_class]
        return request

    @cached_property
    def refusals(self) -> list[tuple[int, str]]:
        """How many nodes each rule was the first to exclude, in words."""
        found = []
        left = self.problem.ready.copy()
        if not left.all():
            found.append((int((~left).sum()), "were not ready"))
        for rule in self.rules.masking:
            mask = rule.mask(self.problem, self.task_class)
            if mask is not None and (left & ~mask).any():
                lost = int((left & ~mask).sum())
                found.append((lost, rule.refusal(self.problem, self.task_class)))
                left &= mask
        return found

    @cached_property
    def open_nodes(self) -> Bool:
        """(N,) nodes that no rule excludes."""
        left = self.problem.ready.copy()
        for rule in self.rules.masking:
            mask = rule.mask(self.problem, self.task_class)
            if mask is not None:
                left &= mask
        return left

    def fits(self, room: I64) -> I64:
        """(m,) tasks that fit nodes with some room (m, R)."""
        asked = np.flatnonzero(self.request)
        counts: I64 = (np.maximum(room[:, asked], 0) // self.request[asked]).min(axis=1)
        return counts

    @property
    def most_ever(self) -> int:
        """Tasks that would fit an empty cluster."""
        return int(self.fits(self.problem.allocatable[self.open_nodes]).sum())

    @property
    def most_now(self) -> int:
        """Tasks that fit what is left."""
        return int(self.fits(self.outcome.idle[self.open_nodes]).sum())

    def _what(self) -> str:
        asks = [
            amount_text(name, int(amount))
            for name, amount in zip(self.problem.resources, self.request, strict=True)
            if amount and name != PODS
        ]
        role = f" of {self.role}" if self.role else ""
        return f"{counted(self.number, 'pod')}{role} with {', '.join(asks) or 'no requests'}"

    def impossible(self) -> Reason:
        """Not even an empty cluster has room."""
        nodes = self.open_nodes
        if not len(nodes):
            return Reason(ReasonCode.NO_NODES, "the cluster has no nodes")
        if not nodes.any():
            why = f"0/{len(nodes)} nodes are open to it: {_list(self.refusals)}"
            return Reason(ReasonCode.PREDICATES, f"{self._what()}: {why}")
        largest = self.problem.allocatable[nodes].max(axis=0)
        for r in np.flatnonzero(self.request > largest).tolist():
            name = self.problem.resources[r]
            return Reason(
                ReasonCode.IMPOSSIBLE,
                f"{self._what()}: no node that it may use offers more than "
                f"{amount_text(name, int(largest[r]))}",
            )
        return Reason(
            ReasonCode.IMPOSSIBLE,
            f"{self._what()}: even with the cluster empty there is room for {self.most_ever} only",
        )

    def lacking(self) -> Reason:
        """What is missing on the nodes that it may use."""
        free = np.maximum(self.outcome.idle[self.open_nodes], 0)
        counts = self.fits(free)
        can = int((counts > 0).sum())
        names = self.problem.resources
        short = [
            (int((free[:, r] < self.request[r]).sum()), f"had too little {names[r]}")
            for r in np.flatnonzero(self.request).tolist()
        ]
        parts = _list([*self.refusals, *((n, text) for n, text in short if n)])
        room = f"room for {int(counts.sum())} of {self._what()}: "
        total = free.sum(axis=0)
        scarce = np.flatnonzero(self.number * self.request > total).tolist()
        if scarce or not len(free):
            tail = f"{can}/{len(self.problem.ready)} nodes could take one; {parts}"
            return Reason(ReasonCode.RESOURCES, room + tail)
        r = int(np.argmax(self.request / np.maximum(free.max(axis=0), 1)))
        name = self.problem.resources[r]
        return Reason(
            ReasonCode.FRAGMENTED,
            f"{room}{amount_text(name, int(total[r]))} are free, but at most "
            f"{amount_text(name, int(free[:, r].max()))} on one node; {parts}",
        )


def _list(refusals: list[tuple[int, str]]) -> str:
    ordered = sorted(refusals, key=lambda r: (-r[0], r[1]))
    return ", ".join(f"{counted(n, 'node')} {text}" for n, text in ordered[:SHOWN])
