"""Why a gang waits: the rules' own reasons first, then what nodes lack, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.reasons import Reason, ReasonCode
from optsched.rules.asking import next_entries
from optsched.rules.base import Room
from optsched.rules.standing import Standing
from optsched.rules.wording import amount_text, counted
from optsched.units import PODS

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.rules.base import Rule
    from optsched.rules.outcome import Outcome
    from optsched.rules.ruleset import RuleSet

SHOWN = 4
"""Kinds of refusal that a sentence lists."""

MOST_TRIED = 256
"""Gangs up to this size are tried out pod by pod where rules watch single nodes."""

_ORDER = {code: i for i, code in enumerate(ReasonCode)}
"""Of several reasons the first in the order of the codes is told."""


class Explainer:
    """Explains the gangs of one outcome; what it learns of a class of tasks it keeps.

    Reasons speak of what is left after the decisions.
    """

    def __init__(self, outcome: Outcome, rules: RuleSet) -> None:
        self._outcome = outcome
        self._rules = rules
        self._views: dict[int, _View] = {}

    @cached_property
    def _standing(self) -> Standing:
        return Standing(self._outcome, self._rules.masking)

    def reason(self, gang: int) -> Reason:
        """Why a gang with pending tasks gets nothing (more) now.

        `gang` is an index on axis G of a gang that can be decided on.
        """
        told = [r for rule in self._rules.hard if (r := rule.explain(self._outcome, gang))]
        if told:
            return min(told, key=lambda reason: _ORDER[reason.code])
        entries = next_entries(self._outcome, gang)
        asks = [_Ask(self._view(c), role, number) for c, role, number in entries]
        for ask in asks:
            if ask.view.most_ever < ask.number:
                return ask.impossible()
        for ask in asks:
            if ask.view.most_now < ask.number:
                return ask.lacking()
        for rule in self._rules.hard:
            reason = rule.explain_rooms(self._outcome, gang, [a.room for a in asks])
            if reason is not None:
                return reason
        if not _fit_together(self._outcome, asks):
            return Reason(
                ReasonCode.FRAGMENTED,
                "each of its roles would find room, but not all of them at once"
                + _besides([r for ask in asks for r in ask.view.refusals]),
            )
        return self._apart(gang, asks) or Reason(
            ReasonCode.OUTRANKED,
            "room is left for it, but no plan was found that uses it and keeps what comes first",
        )

    def _apart(self, gang: int, asks: list[_Ask]) -> Reason | None:
        """Whether rules that watch single nodes leave no room for all pods at once."""
        number = sum(ask.number for ask in asks)
        problem = self._outcome.problem
        binding = sorted(
            {
                rule.name
                for rule in self._rules.masking
                for ask in asks
                if rule.ties_nodes(problem, ask.view.task_class)
            }
        )
        if not binding or number > MOST_TRIED:
            return None
        together = self._standing.most_together(
            [(ask.view.task_class, ask.number) for ask in asks],
            np.array([ask.room.counts for ask in asks]),
        )
        if together >= number:
            return None
        code = ReasonCode.FRAGMENTED if binding == ["gpu-shares"] else ReasonCode.RELATIONS
        return Reason(
            code,
            f"{', '.join(binding)}: room for {together} of its {counted(number, 'pod')} at once",
        )

    def _view(self, task_class: int) -> _View:
        if task_class not in self._views:
            self._views[task_class] = _View(self._outcome, self._rules, self._standing, task_class)
        return self._views[task_class]


def _fit_together(outcome: Outcome, asks: list[_Ask]) -> bool:
    """Whether filling node after node, role after role, finds room for all."""
    idle = np.maximum(outcome.idle, 0)
    for ask in asks:
        nodes = np.flatnonzero(ask.view.open_nodes)
        counts = ask.view.fits(idle[nodes])
        before = np.cumsum(counts) - counts
        taken = np.clip(ask.number - before, 0, counts)
        idle[nodes] -= taken[:, None] * ask.view.request
        if taken.sum() < ask.number:
            return False
    return True


class _View:
    """The nodes as one class of tasks finds them."""

    def __init__(
        self, outcome: Outcome, rules: RuleSet, standing: Standing, task_class: int
    ) -> None:
        self.task_class = task_class
        self.problem = outcome.problem
        self.request: I64 = self.problem.classes.request[task_class]
        self.refusals: list[tuple[int, str]] = []
        self.open_nodes: Bool = self.problem.ready.copy()
        if not self.open_nodes.all():
            self.refusals.append((int((~self.open_nodes).sum()), "did not report ready"))
        lasting = [r for r in rules.masking if r.mask_lasts and not standing.watches(r)]
        for rule in lasting:
            self._exclude(rule, rule.mask(self.problem, task_class))
        self.largest: I64 = self.problem.allocatable[self.open_nodes]
        self.most_ever = int(self.fits(self.largest).sum())
        for rule in (r for r in rules.masking if r not in lasting):
            self._exclude(rule, rule.mask(self.problem, task_class))
        for rule, mask in standing.masks(task_class):
            self._exclude(rule, mask)
        self.free: I64 = np.maximum(outcome.idle[self.open_nodes], 0)
        self.counts = self.fits(self.free)
        self.most_now = int(self.counts.sum())

    def _exclude(self, rule: Rule, mask: Bool | None) -> None:
        if mask is not None and (self.open_nodes & ~mask).any():
            lost = int((self.open_nodes & ~mask).sum())
            self.refusals.append((lost, rule.refusal(self.problem, self.task_class)))
            self.open_nodes &= mask

    def fits(self, room: I64) -> I64:
        """(m,) tasks that fit nodes with some room (m, R)."""
        asked = np.flatnonzero(self.request)
        counts: I64 = (room[:, asked] // self.request[asked]).min(axis=1)
        return counts

    @cached_property
    def shortages(self) -> list[tuple[int, str]]:
        """Nodes that had too little of each resource."""
        names = self.problem.resources
        asked = np.flatnonzero(self.request).tolist()
        short = [(int((self.free[:, r] < self.request[r]).sum()), names[r]) for r in asked]
        return [(n, _shortage(name)) for n, name in short if n]


def _shortage(resource: str) -> str:
    return "had no place for another pod" if resource == PODS else f"had too little {resource}"


@dataclass(frozen=True, slots=True)
class _Ask:
    """Tasks of one class that a gang asks for at once."""

    view: _View
    role: str
    number: int

    @property
    def room(self) -> Room:
        """The room that nodes have for it."""
        counts = np.zeros(self.view.problem.num_nodes, np.int64)
        counts[self.view.open_nodes] = self.view.counts
        return Room(self.view.task_class, self.number, counts)

    def _what(self) -> str:
        view = self.view
        asks = [
            amount_text(name, int(amount))
            for name, amount in zip(view.problem.resources, view.request, strict=True)
            if amount and name != PODS
        ]
        device = view.problem.classes.shapes[view.task_class].device
        if device is not None and device.is_share:
            asks.append(f"{device.milli}/1000 of a GPU")
        role = f" of {self.role}" if self.role else ""
        return f"{counted(self.number, 'pod')}{role} with {', '.join(asks) or 'no requests'}"

    def _no_node_open(self) -> Reason:
        view = self.view
        why = f"0/{len(view.open_nodes)} nodes are open to it: {_list(view.refusals)}"
        return Reason(ReasonCode.PREDICATES, f"{self._what()}: {why}")

    def impossible(self) -> Reason:
        """Not even an empty cluster has room."""
        view = self.view
        if not len(view.open_nodes):
            return Reason(ReasonCode.NO_NODES, "the cluster has no nodes")
        if not len(view.largest):
            return self._no_node_open()
        largest = view.largest.max(axis=0)
        for r in np.flatnonzero(view.request > largest).tolist():
            name = view.problem.resources[r]
            return Reason(
                ReasonCode.IMPOSSIBLE,
                f"{self._what()}: no node that it may use offers more than "
                f"{amount_text(name, int(largest[r]))}{_besides(view.refusals)}",
            )
        return Reason(
            ReasonCode.IMPOSSIBLE,
            f"{self._what()}: even with the cluster empty there is room for {view.most_ever} only"
            f"{_besides(view.refusals)}",
        )

    def lacking(self) -> Reason:
        """What is missing on the nodes that it may use."""
        view = self.view
        if not view.open_nodes.any():
            return self._no_node_open()
        room = f"room for {view.most_now} of {self._what()}: "
        parts = _list([*view.refusals, *view.shortages])
        total = view.free.sum(axis=0)
        if (self.number * view.request > total).any():
            can = int((view.counts > 0).sum())
            tail = f"{can}/{len(view.open_nodes)} nodes could take one; {parts}"
            return Reason(ReasonCode.RESOURCES, room + tail)
        r = int(np.argmax(view.request / np.maximum(view.free.max(axis=0), 1)))
        name = view.problem.resources[r]
        return Reason(
            ReasonCode.FRAGMENTED,
            f"{room}{amount_text(name, int(total[r]))} are free, but at most "
            f"{amount_text(name, int(view.free[:, r].max()))} on one node; {parts}",
        )


def _besides(refusals: list[tuple[int, str]]) -> str:
    """Why not all nodes are among those that may be used, to end a sentence."""
    most: dict[str, int] = {}
    for number, text in refusals:
        most[text] = max(number, most.get(text, 0))
    return f"; {_list([(n, text) for text, n in most.items()])}" if most else ""


def _list(refusals: list[tuple[int, str]]) -> str:
    ordered = sorted(refusals, key=lambda r: (-r[0], r[1]))
    return ", ".join(f"{counted(n, 'node')} {text}" for n, text in ordered[:SHOWN])
