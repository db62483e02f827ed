"""The rules that a policy enables, in policy order, with their enabled switches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from optsched.plugins.custom.extender import Extender
from optsched.plugins.custom.isolation import IsolatedRule
from optsched.plugins.devices.gpu_shares import GpuShares
from optsched.plugins.eviction.victims import Victims, find_budget_protected, find_unpreemptable
from optsched.plugins.extension_points import DEFAULT_SWITCHES, Rule, Switch
from optsched.plugins.nodes.node_filters import Fits, Shards
from optsched.plugins.ordering.fifo import Fifo
from optsched.plugins.ordering.reservation import Reservation
from optsched.plugins.shares.queue_limits import Entitlements
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.plugins.verification.well_formed import WellFormed
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.reasons import Reason
    from optsched.plugins.accounting import Outcome
    from optsched.plugins.custom.extender import Outside
    from optsched.plugins.custom.isolation import Faults
    from optsched.plugins.extension_points import Blocker, Room
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem


ALWAYS: tuple[Rule, ...] = (
    WellFormed(),
    Fifo(),
    Fits(),
    GpuShares(),
    Reservation(),
    Shards(),
    Victims(),
    Entitlements(),
)
"""The rules that are enabled in every policy."""


@runtime_checkable
class GangExclusion(Protocol):
    """A rule that can exclude a gang from every plan."""

    def excludes(self, problem: Problem) -> Bool | None:
        """Return the mask (G,) of gangs that no plan may place, or None if there are none."""


@runtime_checkable
class Blocking(Protocol):
    """A rule whose mask excludes nodes because of pods that already run on them."""

    hard_switch: ClassVar[Switch | None]

    def blockers(self, problem: Problem, task_class: int) -> Sequence[Blocker]:
        """Return the running tasks that exclude a task class from nodes."""


@runtime_checkable
class VictimRelevance(Protocol):
    """A rule that can identify the running tasks whose eviction may help a task class."""

    eviction_can_break: ClassVar[bool]

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """Return a number per running task (V,); victims with equal numbers are interchangeable.

        The number is -1 for tasks whose eviction does not help the task class. Returns None if no
        eviction helps the task class.
        """


@runtime_checkable
class Entitling(Protocol):
    """A rule that defines the deserved shares of queues."""

    returns_by_use: ClassVar[bool]
    """True if a queue may lose a pod once the queue exceeds its deserved share of any resource that
    the pod uses.

    If `returns_by_use` is False, the queue must exceed its deserved share of a resource that the
    reclaiming gang requests.
    """

    def deserved(self, problem: Problem) -> I64 | None:
        """Return the deserved shares (Q, R), or None if the rule defines none."""

    def deserved_by_name(self, world: World) -> Mapping[str, Mapping[str, int]] | None:
        """Return the deserved shares by queue and resource, from cluster objects, for `verify`."""


@runtime_checkable
class EnqueueExplanation(Protocol):
    """A rule that can explain why it does not permit a gang to be enqueued."""

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return why a gang may not be enqueued, or None if the rule permits it.

        Pods are created only for enqueued gangs.
        """


@runtime_checkable
class CapacityExplanation(Protocol):
    """A rule that may keep gangs waiting although nodes have capacity for their tasks."""

    def explain_rooms(self, outcome: Outcome, gang: int, rooms: Sequence[Room]) -> Reason | None:
        """Return why the rule keeps a gang waiting although nodes have capacity, or None."""


_STARVING = frozenset({"gang", "priority", "tdm"})
"""Rules that vote on whether pods may be evicted for a gang (Volcano `JobStarving`)."""


@dataclass(frozen=True, slots=True)
class ActiveRule:
    """A rule of a policy, with its plugin, its tier and its enabled switches.

    `origin` is the file or package of a custom plugin; empty for a built-in plugin.
    """

    rule: Rule
    plugin: str
    tier: int
    switches: frozenset[Switch] = DEFAULT_SWITCHES
    origin: str = ""

    @property
    def binds(self) -> bool:
        """True if the rule's hard constraints are enabled."""
        return self.rule.hard_switch is None or self.rule.hard_switch in self.switches


@dataclass(frozen=True)
class RuleSet:
    """The rules of a policy in call order; rules that are always enabled come first."""

    active: tuple[ActiveRule, ...]
    guards: tuple[Rule, ...] = ()
    """Rules that restrict evictions in addition to the rules of the plugins."""

    @classmethod
    def of(cls, *rules: Rule) -> RuleSet:
        """Return a rule set of the given rules, with default switches and in a single tier."""
        return cls(tuple(ActiveRule(r, r.name, 0) for r in rules))

    @cached_property
    def enforced(self) -> tuple[ActiveRule, ...]:
        """All rules with their enabled switches, including the rules that are always enabled."""
        return (*(ActiveRule(r, r.name, -1) for r in ALWAYS), *self.active)

    @cached_property
    def hard(self) -> tuple[Rule, ...]:
        """The rules that plans must satisfy, without duplicates."""
        found = {a.rule.name: a.rule for a in self.active if a.binds}
        return (*ALWAYS, *found.values())

    @cached_property
    def unmodelled(self) -> tuple[str, ...]:
        """Names of custom rules that only the verifier enforces, not the models or the pipeline."""
        custom = [a.rule for a in self.active if a.origin]
        inner = [rule.inner if isinstance(rule, IsolatedRule) else rule for rule in custom]
        verifying = select_overriding(inner, "verify", "verify_evictions")
        return tuple(r.name for r in verifying if not select_overriding([r], *_MODELLED_BY))

    @cached_property
    def masking(self) -> tuple[Rule, ...]:
        """The hard rules that may exclude nodes; the rules of `predicates` come last."""
        return (*(r for r in self.hard if r.hard_switch is None), *self.predicates)

    @cached_property
    def predicates(self) -> tuple[Rule, ...]:
        """Hard rules that restrict the nodes of a task independently of its gang."""
        return tuple(r for r in self.hard if r.hard_switch is Switch.PREDICATE)

    @cached_property
    def guarding(self) -> tuple[Rule, ...]:
        """The rules that may forbid evictions, without duplicates."""
        evicting = {Switch.PREEMPTABLE, Switch.RECLAIMABLE, Switch.VICTIM}
        switched = [a for a in self.active if evicting & a.switches]
        return (*ALWAYS, *self.guards, *{a.rule.name: a.rule for a in switched}.values())

    def spared(self, problem: Problem) -> Bool:
        """Return the mask (V,) of running tasks that may not be evicted for any gang."""
        spared = np.zeros(len(running_tasks(problem)), np.bool_)
        for rule in self.guarding:
            mine = rule.spares(problem)
            if mine is not None:
                spared |= mine
        return spared

    def waivable(self, problem: Problem, *, overrides_budgets: bool = False) -> Bool:
        """Return the mask (V,) of running tasks that are protected only by their annotations.

        If `overrides_budgets` is set, the mask also includes tasks that a disruption budget
        protects, if guarantees may override the budget.
        """
        waivable = find_unpreemptable(problem)
        if overrides_budgets:
            waivable |= find_budget_protected(problem, yields=True)
        if not waivable.any():
            return waivable
        for rule in self.guarding:
            mine = (
                find_budget_protected(problem, yields=False if overrides_budgets else None)
                if isinstance(rule, Victims)
                else rule.spares(problem)
            )
            if mine is not None:
                waivable &= ~mine
        return waivable

    def entitling(self, problem: Problem) -> tuple[I64 | None, bool]:
        """Return the deserved shares (Q, R) in base units, or None if no rule defines them.

        The second returned value is `returns_by_use` of the rule that defines the shares.
        """
        known = ((rule.deserved(problem), rule.returns_by_use) for rule in self.entitling_rules)
        nothing: tuple[I64 | None, bool] = (None, False)
        return next((found for found in known if found[0] is not None), nothing)

    @cached_property
    def entitling_rules(self) -> tuple[Entitling, ...]:
        """The rules that may define deserved shares of queues."""
        return tuple(a.rule for a in self.active if isinstance(a.rule, Entitling))

    @cached_property
    def blocking(self) -> tuple[Blocking, ...]:
        """The rules of `masking` whose masks depend on running pods."""
        return tuple(rule for rule in self.masking if isinstance(rule, Blocking))

    def find_excluded_gangs(self, problem: Problem) -> Bool:
        """Return the mask (G,) of gangs that a hard rule excludes regardless of evictions."""
        excluded = np.zeros(problem.num_gangs, np.bool_)
        for rule in self.hard:
            if isinstance(rule, GangExclusion):
                found = rule.excludes(problem)
                if found is not None:
                    excluded |= found
        return excluded

    def guarded_by(self, *rules: Rule) -> RuleSet:
        """Return a copy of the rule set with the given rules as `guards`."""
        return RuleSet(self.active, rules)

    def contained(self, faults: Faults) -> RuleSet:
        """Return a rule set that catches errors of custom rules and records them in `faults`."""
        if not any(a.origin for a in self.active):
            return self
        kept = (
            replace(a, rule=IsolatedRule(a.rule, a.plugin, faults)) if a.origin else a
            for a in self.active
        )
        return RuleSet(tuple(kept), self.guards)

    def connected(self, outside: Outside) -> RuleSet:
        """Return a rule set for one session; its extender plugins call services via `outside`."""
        # Without extenders, sessions share the rule set and its cached values.
        if not any(isinstance(a.rule, Extender) for a in self.active):
            return self
        kept = (
            replace(a, rule=replace(a.rule, outside=outside)) if isinstance(a.rule, Extender) else a
            for a in self.active
        )
        return RuleSet(tuple(kept), self.guards)

    @cached_property
    def topology(self) -> NetworkTopology | None:
        """The network topology rule, or None if it is not enabled."""
        return next((r for r in self.hard if isinstance(r, NetworkTopology)), None)

    def distinguish_gangs(self, problem: Problem) -> tuple[Bool | None, list[I64]]:
        """Return how the rules split gang classes.

        The mask (G,) selects the gangs that each form a gang class of their own. The arrays (G,)
        are the integer results of `Rule.distinguish_gangs`; gangs with different integers are in
        different gang classes.
        """
        rules = {r.name: r for r in (*ALWAYS, *(a.rule for a in self.active))}.values()
        found = [f for r in rules if (f := r.distinguish_gangs(problem)) is not None]
        alone: list[Bool] = [f.astype(np.bool_) for f in found if f.dtype == np.bool_]
        numbers: list[I64] = [f.astype(np.int64) for f in found if f.dtype != np.bool_]
        return (np.logical_or.reduce(alone) if alone else None), numbers

    @cached_property
    def scoring(self) -> tuple[Rule, ...]:
        """The rules whose node scores are enabled."""
        return tuple(a.rule for a in self.active if Switch.NODE_ORDER in a.switches)

    @cached_property
    def node_scorers(self) -> tuple[Rule, ...]:
        """The rules of `scoring` that override `scorer` or `class_score`."""
        return select_overriding(self.scoring, "scorer", "class_score")

    @cached_property
    def filters(self) -> tuple[Rule, ...]:
        """The rules of `masking` that override `mask`; other rules exclude no node."""
        return select_overriding(self.masking, "mask")

    @cached_property
    def scorers(self) -> tuple[Rule, ...]:
        """The always-enabled rules, and the rules of `scoring` that override a score method."""
        return select_overriding((*ALWAYS, *self.scoring), "scorer", "class_score")

    @cached_property
    def tying(self) -> tuple[Rule, ...]:
        """Hard rules for which the nodes of a task class may depend on other tasks on the nodes."""
        return select_overriding(self.hard, "ties_nodes")

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Return whether, by a hard rule, the nodes of a task class depend on other tasks there."""
        return any(rule.ties_nodes(problem, task_class) for rule in self.tying)

    def find_rule(self, name: str) -> ActiveRule | None:
        """Return the rule with the given name, or None if the policy does not enable it."""
        return next((a for a in self.active if a.rule.name == name), None)

    @cached_property
    def preempts_for_growth(self) -> bool:
        """True if the `preempt` action also serves gangs that already run their minimum of tasks.

        The first tier with a voting plugin decides (Volcano `JobStarving`). If the plugin `gang`
        votes in the deciding tier, only gangs below their minimum may preempt.
        """
        voting = [a for a in self.active if a.rule.name in _STARVING]
        tiers = [a.tier for a in voting if Switch.JOB_STARVING in a.switches]
        return bool(tiers) and not any(
            a.rule.name == "gang" and a.tier == min(tiers) and Switch.JOB_STARVING in a.switches
            for a in voting
        )

    def enables(self, name: str, switch: Switch) -> bool:
        """Return whether the policy enables both a rule and the given switch of its plugin."""
        found = self.find_rule(name)
        return found is not None and switch in found.switches


def select_overriding(rules: Iterable[Rule], *methods: str) -> tuple[Rule, ...]:
    """Return the rules that override at least one of the given methods of `Rule`.

    A session calls the given methods for every task class, so it skips the rules that only inherit
    these methods.
    """
    return tuple(
        rule
        for rule in rules
        if any(getattr(type(rule), m, None) is not getattr(Rule, m, None) for m in methods)
    )


_MODELLED_BY = ("mask", "excludes", "encode", "constrain_nodes", "spares", "open")
