"""The contract that every rule must keep: its extension points agree with each other.

The rules come from the registry of plugins and from the mandatory rules. A new rule is tested once
a plugin contains it. `ABOUT` may name the task fields that a rule reads.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import Allocate, Enqueue, LevelStatus, Sense
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.accounting import Ledger, Outcome
from optsched.plugins.custom.extender import Extender, Question, Reply, Verb
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.devices.gpu_shares import shares_devices
from optsched.plugins.objectives.levels import LEVELS, build_levels
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.tree_fairness import HierarchicalDrf, OverTime
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World
from optsched.problem.arrays import UNPLACED
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.tiers import priority_tiers
from optsched.session.decompile import pending_of
from optsched.session.session_input import without_gangs
from optsched.solver.greedy.plugins import GreedyPlugins
from optsched.solver.model.node_masks import allowed_nodes
from tests.support.contests import CONSTRAINTS, contests
from tests.support.effort import num_examples
from tests.support.engines import Bench
from tests.support.pages import ROOT
from tests.support.small import best_values
from tests.test_plugin import load_example

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hypothesis.strategies import DataObject, DrawFn

    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import Rule
    from optsched.problem.arrays import F64
    from optsched.problem.problem import Problem

PAGES = ROOT / "models" / "formulation"
ALWAYS = {rule.name: rule for rule in RuleSet.of().hard}
OF_PLUGINS = {rule.name: rule for plugin in PLUGINS.values() for rule in plugin.build({})}


class Fickle:
    """An extender that refuses some nodes to some shapes and prefers others."""

    def send_question(self, question: Question) -> Reply:
        size = len(question.task.shape.request) + len(question.task.shape.tolerations)
        names = [n.name for n in question.nodes]
        if question.verb is Verb.PRIORITIZE:
            return Reply({"scores": {n: float(len(n) + i) for i, n in enumerate(names)}})
        return Reply({"refused": {n: "a whim" for n in names if sum(map(ord, n)) % 3 == size % 3}})


class Asked(Extender):
    """An extender whose cached responses are dropped for each cluster."""

    def refusals(self, task: Task, nodes: tuple[Node, ...]) -> Mapping[str, str]:
        self._answers.refusals.clear()
        return super().refusals(task, nodes)

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        self._answers.scores.clear()
        return super().class_score(problem, task_class)


ASKED = Asked(paths=((Verb.PREDICATE, "p"), (Verb.PRIORITIZE, "s")), outside=Fickle())
TREE = HierarchicalDrf()
SHARING = DeviceShare(by_vgpu=True, by_npu=True)
OF_USERS = {
    "maintenance": load_example().Maintenance(),
    "extender-asked": ASKED,
    "deviceshare-on": SHARING,
}
OWN = {**ALWAYS, **OF_PLUGINS, "drf-tree": TREE, "over-time": OverTime(3_600_000)}
RULES = {**OWN, **OF_USERS}
GANG = RULES["gang"]

ABOUT: dict[str, frozenset[str]] = {
    "gang": frozenset(),
    "priority": frozenset(),
    "drf": frozenset(),
    "overcommit": frozenset(),
    "conformance": frozenset(),
    "fits": frozenset(),
    "shards": frozenset({"sharding"}),
    "proportion": frozenset(),
    "capacity": frozenset(),
    "capability": frozenset(),
    "guarantee": frozenset(),
    "node-affinity": frozenset({"node_selector", "node_affinity"}),
    "taints": frozenset({"tolerations"}),
    "volumes": frozenset({"claims"}),
    "volume-zone": frozenset({"claims"}),
    "volume-limits": frozenset({"claims"}),
    "device-claims": frozenset({"devices"}),
    "deviceshare": frozenset({"cards"}),
    "host-ports": frozenset({"host_ports"}),
    "pod-affinity": frozenset({"pod_affinity", "pod_anti_affinity"}),
    "topology-spread": frozenset({"spread", "node_affinity"}),
    "gpu-shares": frozenset({"device"}),
    "nodeorder": frozenset({"preferred_nodes", "tolerations"}),
    "binpack": frozenset(),
    "maintenance": frozenset(),
    "numa-policy": frozenset({"numa"}),
    "numa-aware": frozenset({"numa"}),
}
"""The constraints of tasks that matter to a rule; one that is not listed meets all of them."""

MOST_PLANS = 256
"""Plans up to which all are tried."""

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
own_rules = pytest.mark.parametrize("rule", OWN.values(), ids=OWN)


def examples(number: int) -> settings:
    return settings(
        max_examples=num_examples(number),
        deadline=None,
        phases=set(Phase) - {Phase.explain},  # `explain` takes minutes
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def with_rule(rule: Rule, *others: Rule) -> RuleSet:
    """Return a rule set of a rule and others, without the mandatory rules."""
    return RuleSet.of(*(r for r in (*others, rule) if r.name not in ALWAYS))


@st.composite
def benches(draw: DrawFn, rule: Rule) -> Bench:
    """Draw a small cluster under one rule, with gangs or with independent pods."""
    snapshot = draw(contests(ABOUT.get(rule.name, CONSTRAINTS)))
    if rule is GANG:
        return Bench.of(snapshot, with_rule(rule), tuple(LEVELS))
    if draw(st.booleans()):
        return Bench.of(snapshot, with_rule(rule, GANG), tuple(LEVELS))
    return Bench.of(without_gangs(snapshot), with_rule(rule), tuple(LEVELS))


def now(bench: Bench) -> Decisions:
    """Return the pipeline's decisions without nominations."""
    decisions = bench.greedy()
    return replace(decisions, nominated=np.full_like(decisions.nominated, UNPLACED))


# --- what there is of it -------------------------------------------------------------------------


@own_rules
def test_it_has_a_page_of_mathematics(rule: Rule) -> None:
    module = type(rule).__module__
    named = re.findall(r"models/formulation/(\w+)\.md", sys.modules[module].__doc__ or "")
    assert named, f"rule {rule.name} ({module}): its module names no page of models/formulation/"
    index = (PAGES / "README.md").read_text("utf-8")
    for page in named:
        assert (PAGES / f"{page}.md").is_file(), f"write models/formulation/{page}.md"
        assert f"[{page}]({page}.md)" in index, f"models/formulation/README.md lacks {page}.md"


@every_rule
def test_it_says_what_it_is(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert (type(rule).__doc__ or "").strip()


def test_no_two_plugins_mean_different_rules_by_one_name() -> None:
    built = [r for p in PLUGINS.values() for r in p.build({})]
    assert {(r.name, type(r)) for r in built} == {(n, type(r)) for n, r in OF_PLUGINS.items()}
    assert not ALWAYS.keys() & OF_PLUGINS.keys()


# --- masks, rooms and what has been placed against the verifier ----------------------------------


class Walk:
    """A random walk that places tasks one by one where the rules' extension points allow it."""

    def __init__(self, bench: Bench, data: DataObject) -> None:
        self._problem, self._data = bench.problem, data
        self._ledger = Ledger(bench.problem)
        self._plugins = GreedyPlugins(bench.problem, bench.rules, self._ledger)
        self._allowed = allowed_nodes(bench.problem, bench.rules)
        self._idle = bench.problem.idle.copy()
        self.node_of = np.full(len(bench.problem.tasks), UNPLACED, np.int64)

    def start(self, gang: int) -> None:
        """Place tasks of a gang while they fit, and roll back if the gang cannot start."""
        if not self._plugins.may_start(gang):
            return
        before = self._state()
        tasks = range(self._problem.task_start[gang], self._problem.task_start[gang + 1])
        placed = [task for task in tasks if self._place(gang, task)]
        if not placed or (self._is_whole(gang, placed) and self._plugins.all_rules_hold(gang)):
            return
        for task in reversed(placed):
            self._add_task(gang, task, int(self.node_of[task]), -1)
        assert self._state() == before, "taking tasks back leaves a trace"

    def _place(self, gang: int, task: int) -> bool:
        task_class = int(self._problem.task_class[task])
        if self._plugins.max_tasks(self._ledger.queue_of[gang], task_class) < 1:
            return False
        fits = (self._idle >= self._problem.classes.request[task_class]).all(axis=1)
        live = self._plugins.fits(-1, task_class, later=False)
        fits &= self._allowed[task_class] & (True if live is None else live)
        if not fits.any():
            return False
        node = self._data.draw(st.sampled_from(np.flatnonzero(fits).tolist()), "node")
        self._add_task(gang, task, node, 1)
        return True

    def _add_task(self, gang: int, task: int, node: int, sign: int) -> None:
        task_class = int(self._problem.task_class[task])
        self._idle[node] -= sign * self._problem.classes.request[task_class]
        self.node_of[task] = node if sign > 0 else UNPLACED
        self._ledger.record_placement(gang, task_class, sign)
        self._plugins.record_placement(gang, task_class, np.array([node]), np.array([sign]))

    def _is_whole(self, gang: int, placed: list[int]) -> bool:
        shape = self._problem.shapes.shapes[self._problem.shape_of[gang]]
        roles = [self._problem.tasks[t].role for t in placed]
        return len(placed) >= shape.need and all(roles.count(r) >= n for r, n in shape.need_role)

    def _state(self) -> object:
        classes = range(len(self._problem.classes.shapes))
        queues = range(len(self._problem.queues.names))
        masks = [self._plugins.fits(-1, c, later=False) for c in classes]
        gangs = self._problem.open_gangs.tolist()
        return (
            [self._plugins.max_tasks(q, c) for q in queues for c in classes],
            [None if mask is None else mask.tolist() for mask in masks],
            [(self._plugins.may_start(g), self._plugins.gang_key(g)) for g in gangs],
            [(self._plugins.queue_key(q), self._plugins.is_overused(q)) for q in queues],
        )


@every_rule
@examples(9)
@given(st.data())
def test_what_its_extension_points_permit_the_verifier_accepts(
    rule: Rule, data: DataObject
) -> None:
    bench = data.draw(benches(rule))
    walk = Walk(bench, data)
    for gang in data.draw(st.permutations(bench.problem.open_gangs.tolist()), "order"):
        walk.start(gang)
    decisions = replace(Decisions.nothing(bench.problem), node_of=walk.node_of)
    assert bench.broken(decisions) == []


@every_rule
@examples(12)
@given(st.data())
def test_the_pipeline_never_breaks_it(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    assert bench.broken(bench.greedy()) == []


# --- rows against the verifier -------------------------------------------------------------------


@every_rule
@examples(9)
@given(st.data())
def test_its_rows_allow_just_the_plans_that_the_verifier_accepts(
    rule: Rule, data: DataObject
) -> None:
    bench = data.draw(benches(rule).filter(has_tasks))
    plan = data.draw(plans(bench))
    accepted = not bench.broken(bench.decisions(plan))
    assert bench.direct_allows(plan) is accepted
    assert not accepted or bench.configurations_allow(plan)


def has_tasks(bench: Bench) -> bool:
    """Return whether any task is pending."""
    return len(bench.problem.tasks) > 0


@st.composite
def plans(draw: DrawFn, bench: Bench) -> dict[str, str]:
    """Draw a random plan, which may violate rules."""
    names = [None, *(n.name for n in bench.problem.snapshot.nodes)]
    chosen = {t.key: draw(st.sampled_from(names), "node") for t in bench.problem.tasks}
    return {task: node for task, node in chosen.items() if node is not None}


@every_rule
@examples(5)
@given(st.data())
def test_the_optimum_keeps_it_and_is_what_trying_everything_finds(
    rule: Rule, data: DataObject
) -> None:
    bench = data.draw(benches(rule))
    start = now(bench)
    answer = bench.improved(start)
    assert bench.broken(answer.decisions) == []
    outcome = Outcome(bench.problem, start)
    signs = [1 if level.sense is Sense.MAX else -1 for level in bench.levels]
    reached = [s * r.value for s, r in zip(signs, answer.results, strict=True)]
    assert reached >= [s * t.value(outcome) for s, t in zip(signs, bench.levels, strict=True)]
    if (bench.problem.num_nodes + 1) ** len(bench.problem.tasks) <= MOST_PLANS:
        best = best_values(bench.problem, bench.rules, bench.levels)
        proved = [*takewhile(lambda r: r.status is LevelStatus.OPTIMAL, answer.results)]
        assert tuple(r.value for r in proved) == best[: len(proved)]
        # GPU shares are allocated after the model is solved, so the model gives only a bound.
        assert len(proved) == len(best) or shares_devices(bench.problem)


# --- the verifier --------------------------------------------------------------------------------


@every_rule
@examples(9)
@given(st.data())
def test_a_plan_that_does_nothing_breaks_nothing(rule: Rule, data: DataObject) -> None:
    snapshot = data.draw(contests(ABOUT.get(rule.name, CONSTRAINTS)))
    enqueued = tuple(Enqueue(gang.key) for gang in snapshot.gangs)
    for actions in ((), enqueued):
        assert verify_actions(snapshot, actions, with_rule(rule, GANG)) == []


ODD_WORDS = re.compile(
    r"\bNone\b|\bnan\b|array\(|np\.|dtype|object at|[A-Z]\w+\.[A-Z]{2}|''|\"\"|\(\)|\[\]|\{\}"
    r"|  |^\s*$|[:,(] *$|[:,] *,|: *:|\(,| ,|(?<!\w)\[[\w']+(, |\])"
)
"""Marks of a name that is missing or a value that was not put into words."""


@every_rule
@examples(9)
@given(st.data())
def test_violations_are_told_in_words(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    names = [n.name for n in bench.problem.snapshot.nodes]
    actions = [
        Allocate(task.key, data.draw(st.sampled_from(names)), gang.key)
        for gang in bench.problem.snapshot.gangs
        for task in gang.tasks
    ]
    for violation in rule.verify(World(bench.problem.snapshot, actions)):
        assert violation.rule == rule.name
        assert not ODD_WORDS.search(str(violation)), violation
        assert re.fullmatch(
            r"(task|node|gang|queue|label) \S+|minResources|all \w+", violation.where
        )


# --- explanations --------------------------------------------------------------------------------


@every_rule
@examples(9)
@given(st.data())
def test_who_waits_knows_why_and_nobody_else(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    decisions = bench.greedy()
    pending = pending_of(bench.problem, decisions, bench.rules)
    expected = {key for key, left in tasks_left(bench, decisions).items() if left}
    expected |= {bench.problem.snapshot.gangs[g].key for g in bench.problem.blocked}
    assert pending.keys() == expected
    for key, reason in pending.items():
        assert not ODD_WORDS.search(reason.message), reason
        named = {g.key for g in bench.problem.snapshot.gangs if f"{g.key}-" in reason.message}
        assert named <= {key}, reason


def tasks_left(bench: Bench, decisions: Decisions) -> dict[str, int]:
    """Return the number of pending tasks without a node by gang."""
    placed = {bench.problem.tasks[t].key for t in np.flatnonzero(decisions.node_of >= 0)}
    return {
        gang.key: sum(t.status is TaskStatus.PENDING and t.key not in placed for t in gang.tasks)
        for gang in bench.problem.snapshot.gangs
    }


@every_rule
@examples(9)
@given(st.data())
def test_who_waits_because_of_it_is_told_of_it(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    gang = data.draw(st.sampled_from([g.key for g in bench.problem.snapshot.gangs]))
    rules = bench.rules
    alone = Bench.of(only(bench.problem.snapshot, gang), rules, ())
    without = replace(rules, active=tuple(a for a in rules.active if a.rule is not rule))
    free = Bench.of(alone.problem.snapshot, without, ())
    if rule.name in ALWAYS or not is_placed(free) or is_placed(alone):
        return
    (index,) = alone.problem.open_gangs.tolist()
    decisions = alone.greedy()
    reason = pending_of(alone.problem, decisions, rules)[gang]
    if reason.code is ReasonCode.OUTRANKED and (decisions.node_of >= 0).any():
        # The placed tasks may open a node to other tasks, so the message may report idle capacity.
        best = Bench.of(alone.problem.snapshot, rules).improved()
        assert (best.decisions.node_of >= 0).all()
        return
    classes = np.unique(alone.problem.task_class).tolist()
    words = [rule.name, *(rule.refusal(alone.problem, c) for c in classes)]
    own = rule.explain(Outcome(alone.problem, decisions), index)
    assert own is not None or any(w in reason.message for w in words), reason


def only(snapshot: Snapshot, gang: str) -> Snapshot:
    """Return the snapshot with the pending tasks of only one gang."""
    gangs = tuple(
        g
        if g.key == gang
        else replace(g, tasks=tuple(t for t in g.tasks if t.status is not TaskStatus.PENDING))
        for g in snapshot.gangs
    )
    return replace(snapshot, gangs=gangs)


def is_placed(bench: Bench) -> bool:
    """Return whether pending tasks exist and the pipeline places all of them."""
    node_of = bench.greedy().node_of
    return bool(len(node_of)) and bool((node_of >= 0).all())


# --- the same again ------------------------------------------------------------------------------


def answers(bench: Bench, rule: Rule) -> dict[str, object]:
    """Return all results of a rule and of the engines with this rule, by name."""
    problem, greedy = bench.problem, now(bench)
    shapes = problem.classes.shapes
    classes = sorted(
        range(len(shapes)), key=lambda c: (repr(shapes[c]), problem.classes.relations[c])
    )
    improved = bench.improved(greedy)
    outcome = Outcome(problem, greedy)
    return {
        "masks": [listed(rule.mask(problem, c)) for c in classes],
        "refusals": [rule.refusal(problem, c) for c in classes],
        "ties": [rule.ties_nodes(problem, c) for c in classes],
        "scores": [scores(bench, rule, c) for c in classes],
        "greedy": bench.actions(bench.greedy()),
        "solved": (bench.actions(improved.decisions), improved.results),
        "levels": [(t.name, t.unit, t.value(outcome), t.ideal(problem)) for t in bench.levels],
        "pending": pending_of(problem, greedy, bench.rules),
    }


def scores(bench: Bench, rule: Rule, task_class: int) -> list[object]:
    problem = bench.problem
    scorer = rule.scorer(problem, task_class)
    load = None if scorer is None else scorer(problem.used, problem.allocatable)
    return [listed(load), listed(rule.class_score(problem, task_class))]


def listed(array: np.ndarray | None) -> list[object] | None:
    return None if array is None else array.tolist()


def differing(one: dict[str, object], other: dict[str, object]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


@every_rule
@examples(5)
@given(st.data())
def test_the_same_problem_gets_the_same_answers(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    again = Bench.of(bench.problem.snapshot, bench.rules, tuple(LEVELS))
    other_way = Bench.of(turned(bench.problem.snapshot), bench.rules, tuple(LEVELS))
    first = answers(bench, rule)
    assert differing(first, answers(again, rule)) == []
    assert differing(first, answers(other_way, rule)) == []


def turned(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with reversed order of all unordered collections."""

    def reverse(mapping):
        return dict(reversed(mapping.items()))

    nodes = tuple(
        replace(n, labels=reverse(n.labels), taints=n.taints[::-1], residents=n.residents[::-1])
        for n in snapshot.nodes
    )
    gangs = tuple(replace(g, tasks=g.tasks[::-1]) for g in snapshot.gangs)
    namespaces, claims = reverse(snapshot.namespaces), reverse(snapshot.claims)
    return replace(snapshot, nodes=nodes, gangs=gangs, namespaces=namespaces, claims=claims)


@every_rule
@examples(5)
@given(st.data())
def test_step_by_step_is_from_scratch(rule: Rule, data: DataObject) -> None:
    bench = data.draw(benches(rule))
    earlier = data.draw(earlier_snapshots(bench.problem.snapshot))
    problem = compile_problem(bench.problem.snapshot, compile_problem(earlier))
    tiers = priority_tiers(problem, problem.priority, 60_000)
    levels = build_levels(problem, bench.rules, tiers, tuple(LEVELS))
    later = Bench(problem, bench.rules, tiers, levels)
    assert differing(answers(bench, rule), answers(later, rule)) == []


@st.composite
def earlier_snapshots(draw: DrawFn, snapshot: Snapshot) -> Snapshot:
    """Draw an earlier state of a cluster: an unrelated one, or this one with fewer objects."""
    if draw(st.booleans()):
        return draw(contests())
    kept = draw(st.lists(st.booleans(), min_size=8, max_size=8))
    return replace(
        snapshot,
        gangs=tuple(g for g, keep in zip(snapshot.gangs, kept, strict=False) if keep),
        nodes=tuple(n for n, keep in zip(snapshot.nodes, kept[4:], strict=False) if keep),
    )
