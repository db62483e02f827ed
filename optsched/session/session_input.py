"""The input of a session: the normalised snapshot, and the policy with connected rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.api.wellknown import DATASETS
from optsched.cluster.dra_devices import evaluate_selectors
from optsched.cluster.node_resources import NO_REQUIRED_DATA, RequiredData
from optsched.cluster.relocation import kept_places
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.nodes import datasets_in
from optsched.plugins.custom.extender import Recorder, Recording
from optsched.plugins.custom.isolation import Faults
from optsched.plugins.devices.deviceshare import EXCLUSIVE, DeviceShare
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Entitled
from optsched.plugins.eviction.moves import CONSOLIDATE, Consolidation
from optsched.plugins.eviction.victims import SYSTEM_PRIORITY, system_first
from optsched.plugins.extension_points import Switch
from optsched.plugins.scores.nodeorder import DataLocality, NodeOrder
from optsched.policy.policy import Admission, SolverKind
from optsched.problem.tiers import Tiers, priority_tiers, weighted_tier
from optsched.session.budgets import limit_budgets
from optsched.session.coarse_terms import with_coarse_terms
from optsched.session.costly_gangs import defer_gangs
from optsched.session.guarantees import hold_guarantees
from optsched.session.lending import without_lending
from optsched.session.search_history import History
from optsched.session.session_clock import SessionClock
from optsched.solver.cpsat.level_model import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.dra_devices import DeviceNeed
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import Rule
    from optsched.plugins.ruleset import RuleSet
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.session.context import SessionContext
    from optsched.session.guarantees import Unheld

EVICTING = {"preempt": PREEMPT, "gangpreempt": PREEMPT, "reclaim": RECLAIM, "gangreclaim": RECLAIM}
"""Maps each evicting action of a policy to the eviction that it permits: preempt or reclaim."""


@dataclass(frozen=True, eq=False)
class SessionInput:
    """The input and the dependencies of a session.

    Attributes
    ----------
    given
        The snapshot before normalisation.
    snapshot
        The normalised snapshot; for example, it lacks guarantees that exceed cluster capacity.
    unheld
        The guarantees that were dropped because they exceed cluster capacity.
    separated
        Gangs that are not in `snapshot`, because they have a problem and hold no capacity
        (`defer_gangs`).
    policy
        The policy, whose rules call the session's extenders and record failures as faults.
    rules
        The rules for the verifier and for choosing victims: the policy's rules, and rules that
        guard against wrong evictions.
    left_out
        Keys of gangs that get no node, because custom plugins reject every plan that starts them.
    num_coarse_terms
        The number of terms of running pods that exceed a limit (`with_coarse_terms`).
    protected_namespaces
        The namespaces whose pods are not evicted, because they have too many disruption budgets.
    context, clock, history, faults, extenders
        The session's dependencies, and recorders of times, progress, failures and extender replies.

    """

    given: Snapshot
    snapshot: Snapshot
    unheld: tuple[Unheld, ...]
    separated: tuple[Gang, ...]
    policy: Policy
    rules: RuleSet
    context: SessionContext
    clock: SessionClock
    history: History
    faults: Faults
    extenders: Recorder
    left_out: frozenset[str] = frozenset()
    num_coarse_terms: int = 0
    protected_namespaces: tuple[str, ...] = ()

    @property
    def is_optimised(self) -> bool:
        """Whether the policy uses a solver; if False, the greedy pipeline decides."""
        return self.policy.solver is SolverKind.CPSAT

    @property
    def reach(self) -> frozenset[str]:
        """The subset of preempt and reclaim that the policy permits."""
        return eviction_reach(self.policy)

    @property
    def reach_with_moves(self) -> frozenset[str]:
        """The subset of preempt, reclaim and consolidation that the policy permits."""
        return self.reach | {CONSOLIDATE} & set(self.policy.actions)

    def without_proposers(self, broken_rule: str) -> SessionInput:
        """Return the input without custom actions; record that custom actions violated a rule."""
        message = f"is not used, because every plan with it violates a rule: {broken_rule}"
        for proposer in self.policy.proposers:
            proposer.record_invalid(message, self.faults)
        return replace(self, policy=replace(self.policy, proposers=()))

    def without_gangs(self, blocked: Mapping[str, Reason]) -> SessionInput:
        """Return the input in which the gangs in `blocked` get no node, for the given reasons."""
        gangs = tuple(
            replace(g, problem=blocked[g.key]) if g.key in blocked and g.problem is None else g
            for g in self.snapshot.gangs
        )
        snapshot = replace(self.snapshot, gangs=gangs)
        return replace(self, snapshot=snapshot, left_out=self.left_out | blocked.keys())


def normalise(given: Snapshot, policy: Policy, context: SessionContext) -> SessionInput:
    """Normalise the snapshot and connect the rules to the session; return the session's input."""
    rules = policy.rules
    snapshot, unheld = hold_guarantees(kept_places(given).snapshot)
    separated: tuple[Gang, ...] = ()
    num_coarse = 0
    protected: tuple[str, ...] = ()
    limits = context.limits or Limits(budget_ms=policy.budgets.solve_ms)
    if context.period_ms is not None:  # Only a live scheduler has a deadline and later sessions.
        time_ms = context.period_ms + (limits.budget_ms or 0)
        snapshot, separated = defer_gangs(snapshot, time_ms)
        snapshot, num_coarse = with_coarse_terms(snapshot)
        snapshot, protected = limit_budgets(snapshot)
    if rules.find_rule("conformance") is not None:
        snapshot = system_first(snapshot)
    snapshot = with_required_data(snapshot, rules.scoring)
    snapshot = with_verdicts(with_exclusive(snapshot, rules.masking))
    if not rules.enables("gang", Switch.JOB_READY):
        snapshot = without_gangs(snapshot)
    faults = Faults()
    extenders = Recorder(context.outside or Recording(given.answers))
    rules = rules.connected(extenders).contained(faults)
    is_optimised, reach = policy.solver is SolverKind.CPSAT, eviction_reach(policy)
    if not is_optimised or RECLAIM not in reach:
        rules = without_lending(rules)
    clock = SessionClock(context.clock, limits, context.period_ms)
    return SessionInput(
        given=given,
        snapshot=snapshot,
        unheld=unheld,
        separated=separated,
        policy=replace(policy, rules=rules),
        rules=rules.guarded_by(Entitled(rules, reach), Consolidation()) if is_optimised else rules,
        context=context,
        clock=clock,
        history=History(context.watch, clock.elapsed_s),
        faults=faults,
        extenders=extenders,
        num_coarse_terms=num_coarse,
        protected_namespaces=protected,
    )


def eviction_reach(policy: Policy) -> frozenset[str]:
    """Return the subset of preempt and reclaim that a policy's actions and plugins permit."""
    reach = {EVICTING[action] for action in policy.actions if action in EVICTING}
    if not policy.rules.enables("priority", Switch.PREEMPTABLE):
        reach.discard(PREEMPT)
    if not any(
        policy.rules.enables(name, Switch.RECLAIMABLE) for name in ("capacity", "proportion")
    ):
        reach.discard(RECLAIM)
    return frozenset(reach)


def without_gangs(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which a task may start before the other tasks of its gang.

    Policies without the plugin `gang` use this snapshot. Enqueueing still respects a gang's
    minimum.
    """
    gangs = tuple(replace(g, is_loose=True) for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


def find_tiers(problem: Problem, policy: Policy, heads: Sequence[int] = ()) -> Tiers:
    """Return the tiers of gangs by queue priority, then gang priority, if the policy uses them.

    If the policy has the plugin `conformance`, system gangs precede all other gangs.

    Parameters
    ----------
    heads
        Indices of gangs that have waited too long and whose reservation starts now.

    """
    knows = policy.rules.find_rule("priority") is not None
    priority = problem.priority if knows else np.zeros_like(problem.priority)
    spares = policy.rules.find_rule("conformance") is not None
    is_system = (problem.priority >= SYSTEM_PRIORITY) & spares
    priority = np.where(is_system, problem.priority, priority)
    if policy.admission is Admission.BY_WEIGHT:
        return weighted_tier(problem, priority)
    has_order = any(
        policy.rules.enables(name, Switch.QUEUE_ORDER) for name in ("capacity", "proportion")
    )
    of_queue = np.append(problem.queues.priority, 0)[problem.queue_of] if has_order else None
    if of_queue is not None:
        of_queue = np.where(is_system, SYSTEM_PRIORITY, of_queue)
    return priority_tiers(problem, priority, policy.budgets.starvation_after_ms, of_queue, heads)


# --- device selectors ----------------------------------------------------------------------------


def with_verdicts(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its device selectors evaluated, except for costly requests.

    Returns the same snapshot if the evaluation changes nothing.
    """
    devices = snapshot.devices
    if not devices.on_node and not devices.elsewhere:
        return snapshot
    # The (namespace, request) pairs of pods, and of their claims without allocation.
    needs: list[tuple[str, DeviceNeed]] = []
    seen: set[tuple[str, object]] = set()
    for gang in snapshot.gangs:
        namespace = gang.key.partition("/")[0]
        for task in gang.tasks:
            parts = (namespace, (task.shape.devices, task.device_claims))
            if parts in seen or not any(parts[1]):
                continue
            seen.add(parts)
            named = (devices.claims[key] for key in task.device_claims if key in devices.claims)
            requests = [*task.shape.devices, *(c.request for c in named if c.allocation is None)]
            needs += ((namespace, need) for request in requests for need in request.needs)
    found = evaluate_selectors(devices, needs)
    return snapshot if found is devices else replace(snapshot, devices=found)


# --- exclusive vGPUs -----------------------------------------------------------------------------


def with_exclusive(snapshot: Snapshot, rules: Iterable[Rule]) -> Snapshot:
    """Annotate tasks with their exclusion groups (`DeviceShare.exclusive`).

    Returns the same snapshot if no rule defines exclusion groups.
    """
    rule = next((r for r in rules if isinstance(r, DeviceShare) and r.exclusive), None)
    if rule is None:
        return snapshot
    known: dict[str, Task] = {}

    def noted(task: Task) -> Task:
        if task.key not in known:
            group = rule.exclusive_groups(task)
            known[task.key] = task
            if group:
                notes = tuple(sorted({**dict(task.shape.notes), EXCLUSIVE: group}.items()))
                known[task.key] = replace(task, shape=replace(task.shape, notes=notes))
        return known[task.key]

    nodes = tuple(replace(n, residents=tuple(map(noted, n.residents))) for n in snapshot.nodes)
    gangs = tuple(replace(g, tasks=tuple(map(noted, g.tasks))) for g in snapshot.gangs)
    return replace(snapshot, nodes=nodes, gangs=gangs)


# --- images and data sets ------------------------------------------------------------------------


def with_required_data(snapshot: Snapshot, scoring: Iterable[Rule]) -> Snapshot:
    """Add the images and data sets that rules score to the pending tasks of a snapshot.

    Returns the same snapshot if no task uses an image or data set that only some nodes store.
    """
    rules = list(scoring)
    images = any(isinstance(r, NodeOrder) and r.image_locality for r in rules)
    datasets = any(isinstance(r, DataLocality) and r.weight for r in rules)
    stores = [n.store for n in snapshot.nodes if n.ready]
    images &= any(store.images for store in stores)
    datasets &= any(store.datasets for store in stores)
    if not images and not datasets:
        return snapshot
    pending = [(g, t) for g in snapshot.gangs for t in g.tasks if t.status is TaskStatus.PENDING]
    named = {n for _, t in pending for n in t.wants.images if n} if images else set[str]()
    counts = Counter(n for store in stores for n in store.size_of.keys() & named)
    counted = Counter(n for store in stores for n in store.datasets) if datasets else Counter()
    known_images = _Known.from_counts(counts, len(stores))
    known_datasets = _Known.from_counts(counted, len(stores))
    changed: dict[str, dict[str, Task]] = {}
    for gang, task in pending:
        named_images = tuple(n if n in known_images.held else "" for n in task.wants.images)
        named_datasets = task.wants.datasets or datasets_in(gang.annotations.get(DATASETS, ""))
        wants = RequiredData(
            named_images if known_images.telling.intersection(named_images) else (),
            named_datasets if known_datasets.telling.intersection(named_datasets) else (),
        )
        if wants != NO_REQUIRED_DATA:
            fresh = replace(task, shape=replace(task.shape, wants=wants))
            changed.setdefault(gang.key, {})[task.key] = fresh
    if not changed:
        return snapshot
    gangs = tuple(
        replace(gang, tasks=tuple(fresh_tasks.get(t.key, t) for t in gang.tasks))
        if (fresh_tasks := changed.get(gang.key))
        else gang
        for gang in snapshot.gangs
    )
    return replace(snapshot, gangs=gangs)


class _Known(NamedTuple):
    """The names of the images (or of the data sets) that the cluster's nodes store.

    Attributes
    ----------
    held
        The names that at least one node stores.
    telling
        The names that some nodes store and others do not.

    """

    held: frozenset[str]
    telling: frozenset[str]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], num_nodes: int) -> _Known:
        """Return the names in `counts`, which maps each stored name to its number of nodes."""
        telling = frozenset(name for name, number in counts.items() if number < num_nodes)
        return cls(frozenset(counts), telling)
