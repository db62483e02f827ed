"""The rules that a policy switches on, in its order, with the faces that it leaves on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.custom.isolation import IsolatedRule
from optsched.plugins.devices.gpu_shares import GpuShares
from optsched.plugins.eviction.victims import Victims, protected, unwilling
from optsched.plugins.extension_points import Rule
from optsched.plugins.external.extender import Extender
from optsched.plugins.faces import DEFAULT_FACES, Face
from optsched.plugins.nodes.fits import Fits
from optsched.plugins.nodes.shards import Shards
from optsched.plugins.ordering.fifo import Fifo
from optsched.plugins.ordering.reservation import Reservation
from optsched.plugins.shares.entitlement import Entitlements
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.plugins.verification.well_formed import WellFormed
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.plugins.custom.isolation import Faults
    from optsched.plugins.external.outside import Outside
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


_ALWAYS: tuple[Rule, ...] = (
    WellFormed(),
    Fifo(),
    Fits(),
    GpuShares(),
    Reservation(),
    Shards(),
    Victims(),
    Entitlements(),
)


_STARVING = frozenset({"gang", "priority", "tdm"})
"""Rules that vote on which gangs others may be evicted for."""


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """A rule in its place: the plugin that brought it, its tier and the faces that are on.

    `origin` says where the plugin comes from; empty for those that come along.
    """

    rule: Rule
    plugin: str
    tier: int
    faces: frozenset[Face] = DEFAULT_FACES
    origin: str = ""

    @property
    def binds(self) -> bool:
        """Whether its hard part is on."""
        return self.rule.hard_face is None or self.rule.hard_face in self.faces


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order in which they are asked; those that always hold come first."""

    active: tuple[ActiveRule, ...]
    guards: tuple[Rule, ...] = ()
    """Rules on evictions that hold beside those of plugins."""

    @classmethod
    def of(cls, *rules: Rule) -> RuleSet:
        """Some rules with all their faces, in one tier."""
        return cls(tuple(ActiveRule(r, r.name, 0) for r in rules))

    @cached_property
    def asked(self) -> tuple[ActiveRule, ...]:
        """All rules with their faces, those that always hold included."""
        return (*(ActiveRule(r, r.name, -1) for r in _ALWAYS), *self.active)

    @property
    def always(self) -> tuple[Rule, ...]:
        """The rules that hold in every policy."""
        return _ALWAYS

    @cached_property
    def hard(self) -> tuple[Rule, ...]:
        """The rules that plans must keep, each once."""
        found = {a.rule.name: a.rule for a in self.active if a.binds}
        return (*_ALWAYS, *found.values())

    @cached_property
    def unmodelled(self) -> tuple[str, ...]:
        """Names of custom rules that verify plans and give the engines nothing to find them by."""
        custom = [a.rule for a in self.active if a.origin]
        inner = [rule.inner if isinstance(rule, IsolatedRule) else rule for rule in custom]
        return tuple(rule.name for rule in inner if _only_verifies(type(rule)))

    @cached_property
    def masking(self) -> tuple[Rule, ...]:
        """Hard rules that exclude nodes."""
        return (*(r for r in self.hard if r.hard_face is None), *self.predicates)

    @cached_property
    def predicates(self) -> tuple[Rule, ...]:
        """Hard rules on where a task may be, whatever its gang."""
        return tuple(r for r in self.hard if r.hard_face is Face.PREDICATE)

    @cached_property
    def guarding(self) -> tuple[Rule, ...]:
        """Rules that have a say in evictions, each once."""
        evicting = {Face.PREEMPTABLE, Face.RECLAIMABLE, Face.VICTIM}
        switched = [a for a in self.active if evicting & a.faces]
        return (*_ALWAYS, *self.guards, *{a.rule.name: a.rule for a in switched}.values())

    def spared(self, problem: Problem) -> Bool:
        """(V,) running tasks that may not be evicted, whoever asks."""
        spared = np.zeros(len(running_tasks(problem)), np.bool_)
        for rule in self.guarding:
            mine = rule.spares(problem)
            if mine is not None:
                spared |= mine
        return spared

    def waivable(self, problem: Problem) -> Bool:
        """(V,) running tasks that nothing but what they say of themselves keeps from eviction."""
        waivable = unwilling(problem)
        if not waivable.any():
            return waivable
        for rule in self.guarding:
            mine = protected(problem) if isinstance(rule, Victims) else rule.spares(problem)
            if mine is not None:
                waivable &= ~mine
        return waivable

    def entitling(self, problem: Problem) -> tuple[I64 | None, bool]:
        """(Q, R) what queues may claim back, in base units; None where no rule says it.

        And whether queues return what their pods use, not what is asked for (`returns_by_use`).
        """
        known = ((a.rule.deserved(problem), a.rule.returns_by_use) for a in self.active)
        nothing: tuple[I64 | None, bool] = (None, False)
        return next((found for found in known if found[0] is not None), nothing)

    def guarded_by(self, *rules: Rule) -> RuleSet:
        """The same with more rules on evictions."""
        return RuleSet(self.active, rules)

    def contained(self, faults: Faults) -> RuleSet:
        """The same, where what raises in a rule from elsewhere is noted and does no more harm."""
        if not any(a.origin for a in self.active):
            return self
        kept = (
            replace(a, rule=IsolatedRule(a.rule, a.plugin, faults)) if a.origin else a
            for a in self.active
        )
        return RuleSet(tuple(kept), self.guards)

    def connected(self, outside: Outside) -> RuleSet:
        """Return the rules for one session, with the services that extenders may call."""
        kept = (
            replace(a, rule=a.rule.connect(outside)) if isinstance(a.rule, Extender) else a
            for a in self.active
        )
        return RuleSet(tuple(kept), self.guards)

    @cached_property
    def topology(self) -> NetworkTopology | None:
        """The rule on network topology, if it is on."""
        return next((r for r in self.hard if isinstance(r, NetworkTopology)), None)

    def distinguish_gangs(self, problem: Problem) -> tuple[Bool | None, list[I64]]:
        """Return the gangs (G,) that stay classes of their own, and numbers (G,) that split them.

        The numbers are those of `Rule.distinguish_gangs`, one array a rule.
        """
        rules = {r.name: r for r in (*_ALWAYS, *(a.rule for a in self.active))}.values()
        found = [f for r in rules if (f := r.distinguish_gangs(problem)) is not None]
        alone: list[Bool] = [f.astype(np.bool_) for f in found if f.dtype == np.bool_]
        numbers: list[I64] = [f.astype(np.int64) for f in found if f.dtype != np.bool_]
        return (np.logical_or.reduce(alone) if alone else None), numbers

    @cached_property
    def scoring(self) -> tuple[Rule, ...]:
        """Rules whose scores count."""
        return tuple(a.rule for a in self.active if Face.NODE_ORDER in a.faces)

    @cached_property
    def ranking(self) -> tuple[Rule, ...]:
        """Rules by which nodes are ranked: those whose scores count, and those that always hold."""
        return (*_ALWAYS, *self.scoring)

    @cached_property
    def filters(self) -> tuple[Rule, ...]:
        """The rules of `masking` that have a mask: the others exclude no node of any class."""
        return _overriding(self.masking, "mask")

    @cached_property
    def scorers(self) -> tuple[Rule, ...]:
        """The rules of `ranking` that give scores."""
        return _overriding(self.ranking, "scorer", "class_score")

    @cached_property
    def level_scorers(self) -> tuple[Rule, ...]:
        """The rules of `scoring` that give scores."""
        return _overriding(self.scoring, "scorer", "class_score")

    @cached_property
    def tying(self) -> tuple[Rule, ...]:
        """Hard rules that may tie classes to what else stands on nodes."""
        return _overriding(self.hard, "ties_nodes")

    @cached_property
    def explaining(self) -> tuple[Rule, ...]:
        """Hard rules that explain why a gang waits, whatever room nodes have."""
        return _overriding(self.hard, "explain")

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Whether some hard rule ties a class to what else stands on nodes."""
        return any(rule.ties_nodes(problem, task_class) for rule in self.tying)

    def find(self, name: str) -> ActiveRule | None:
        """The rule of a name, if it is on at all."""
        return next((a for a in self.active if a.rule.name == name), None)

    @cached_property
    def preempts_for_growth(self) -> bool:
        """Whether preempt serves gangs beyond their minimum (Volcano `JobStarving`).

        The first tier with a vote decides; there `gang` votes for gangs below their minimum alone.
        """
        voting = [a for a in self.active if a.rule.name in _STARVING]
        tiers = [a.tier for a in voting if Face.JOB_STARVING in a.faces]
        return bool(tiers) and not any(
            a.rule.name == "gang" and a.tier == min(tiers) and Face.JOB_STARVING in a.faces
            for a in voting
        )

    def has(self, name: str, face: Face) -> bool:
        """Whether a rule is on with a face."""
        found = self.find(name)
        return found is not None and face in found.faces


def _overriding(rules: Iterable[Rule], *methods: str) -> tuple[Rule, ...]:
    """The rules with a form of their own of some method: sessions ask no others of each class."""
    return tuple(
        rule
        for rule in rules
        if any(getattr(type(rule), method) is not getattr(Rule, method) for method in methods)
    )


_MODELLED_BY = ("mask", "excludes", "encode", "constrain_nodes", "spares", "open")


def _only_verifies(kind: type[Rule]) -> bool:
    if kind.verify is Rule.verify and kind.verify_evictions is Rule.verify_evictions:
        return False
    return all(getattr(kind, face) is getattr(Rule, face) for face in _MODELLED_BY)
