"""Contract tests for custom rules.

    class TestMaintenance(RuleContract):
        rule = Maintenance()
        node_labels = ({"lab.example/repair": "yes"}, {"lab.example/power": "green"})

pytest runs the subclass on small random clusters. The tests check that the extension points of the
rule agree with each other, that both engines obey the rule, and that no method of the rule raises
an exception. The tests need pytest and hypothesis (`optsched[testing]`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optsched.cluster.decisions import Allocate
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.plugins.custom.isolation import OWN_POINTS
from optsched.plugins.extension_points import Rule
from optsched.plugins.gangs.gang import Gang as Gangs
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import World
from optsched.policy.policy import Policy, SolverKind
from optsched.problem.compile import compile_problem
from optsched.session.session import Report, SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import DataObject, DrawFn

CPU, GPU = "cpu", "nvidia.com/gpu"

_EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
_ORIGIN = "your own"

examples = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.differing_executors,
    ],
)


class RuleContract:
    """Contract tests of one rule: subclass this class and set the attributes.

    Attributes
    ----------
    rule
        The rule under test, with its arguments.
    node_labels, task_labels
        Labels that the rule reads; each random node or task has some of these labels.
    requests
        Possible requests of a task, in base units, keyed by resource name.

    """

    rule: ClassVar[Rule]
    node_labels: ClassVar[Sequence[Mapping[str, str]]] = ()
    task_labels: ClassVar[Sequence[Mapping[str, str]]] = ()
    requests: ClassVar[Sequence[Mapping[str, int]]] = (
        {CPU: 1000},
        {CPU: 2000},
        {CPU: 1000, GPU: 1},
    )

    def clusters(self) -> st.SearchStrategy[Snapshot]:
        """Return small random clusters; override this method if the rule reads other fields."""
        return small_clusters(self.node_labels, self.task_labels, self.requests)

    # --- the declaration -------------------------------------------------------------------------

    def test_it_says_what_it_is(self) -> None:
        """Check that the rule has a name in lower case and a docstring."""
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", self.rule.name)
        assert (type(self.rule).__doc__ or "").strip()

    def test_it_overrides_only_extension_points_of_plugins(self) -> None:
        """Check that the rule overrides only extension points that custom rules may override."""
        points = {n for n, base in vars(Rule).items() if callable(base) and n[0] != "_"}
        assert {n for n in points - OWN_POINTS if self._implements(n)} == set()

    # --- the verifier ----------------------------------------------------------------------------

    @examples
    @given(st.data())
    def test_doing_nothing_breaks_nothing(self, data: DataObject) -> None:
        """Check that the rule accepts a plan without actions."""
        snapshot = data.draw(self.clusters())
        assert list(self.rule.verify(World(snapshot, ()))) == []

    @examples
    @given(st.data())
    def test_its_mask_says_what_its_verifier_says(self, data: DataObject) -> None:
        """Check that the rule's mask and verifier agree on each plan that places a task on a node.

        The verifier rejects every node that the mask filters out. The verifier accepts all other
        nodes, unless the rule also excludes nodes by `open` or `ties_nodes`.
        """
        snapshot = data.draw(self.clusters())
        problem = compile_problem(snapshot)
        for t, task in enumerate(problem.tasks):
            mask = self.rule.mask(problem, int(problem.task_class[t]))
            for n, node in enumerate(snapshot.nodes):
                plan = [Allocate(task.key, node.name, task.gang)]
                refused = any(self.rule.verify(World(snapshot, plan)))
                permitted = mask is None or bool(mask[n])
                assert permitted or refused, f"the mask alone keeps {task.key} off {node.name}"
                watches = self._implements("open") or self._implements("ties_nodes")
                assert watches or not (permitted and refused), f"{task.key}, {node.name}: no mask"

    # --- both engines ----------------------------------------------------------------------------

    @examples
    @given(st.data())
    def test_the_pipeline_keeps_it(self, data: DataObject) -> None:
        """Check that the verifier accepts each plan of the greedy pipeline unchanged."""
        snapshot = data.draw(self.clusters())
        report = self._decide(snapshot, SolverKind.NONE)
        assert report.trace.faults == ()
        assert report.trace.violations == ()
        assert _broken(snapshot, report, self._rules()) == []
        assert ReasonCode.PLUGIN not in {r.code for r in report.plan.pending.values()}

    @examples
    @given(st.data())
    def test_the_optimising_session_keeps_it(self, data: DataObject) -> None:
        """Check that the optimised plan obeys the rule, and is no worse than the greedy plan."""
        snapshot = data.draw(self.clusters())
        report = self._decide(snapshot, SolverKind.CPSAT)
        assert _broken(snapshot, report, self._rules()) == []
        assert report.trace.faults == ()
        greedy = self._decide(snapshot, SolverKind.NONE)
        values = [[r.value for r in p.plan.certificate.levels] for p in (report, greedy)]
        assert values[0] >= values[1]

    @examples
    @given(st.data())
    def test_the_same_cluster_gets_the_same_plan(self, data: DataObject) -> None:
        """Check that two sessions on the same cluster return the same actions and pending gangs."""
        snapshot = data.draw(self.clusters())
        for solver in SolverKind:
            first, again = (self._decide(snapshot, solver).plan for _ in range(2))
            assert (first.actions, first.pending) == (again.actions, again.pending)

    # --- parts -----------------------------------------------------------------------------------

    def _implements(self, point: str) -> bool:
        return getattr(type(self.rule), point, None) is not getattr(Rule, point, None)

    def _rules(self) -> RuleSet:
        tested = ActiveRule(self.rule, _ORIGIN, 1, origin=_ORIGIN)
        known = tuple(ActiveRule(r, r.name, 1) for r in (Gangs(), Priority()))
        return RuleSet((*known, tested))

    def _decide(self, snapshot: Snapshot, solver: SolverKind) -> Report:
        policy = Policy(
            name="contract",
            source="contract",
            actions=("enqueue", "allocate", "backfill"),
            tiers=(),
            rules=self._rules(),
            levels=("admission", "tasks", "node-score"),
            solver=solver,
        )
        context = SessionContext(solver=InProcess(), limits=_EXACT)
        return run_session(snapshot, policy, context)


def _broken(snapshot: Snapshot, report: Report, rules: RuleSet) -> list[str]:
    return [str(v) for v in verify_actions(snapshot, report.plan.actions, rules)]


@st.composite
def small_clusters(
    draw: DrawFn,
    node_labels: Sequence[Mapping[str, str]] = (),
    task_labels: Sequence[Mapping[str, str]] = (),
    requests: Sequence[Mapping[str, int]] = ({CPU: 1000},),
) -> Snapshot:
    """Draw clusters of up to three nodes and three pending gangs, with up to two running gangs."""
    nodes: dict[str, tuple[tuple[tuple[str, int], ...], dict[str, str]]] = {}
    for i in range(draw(st.integers(1, 3))):
        cpu, gpu = draw(st.integers(2, 5)), draw(_FEW)
        allocatable = ((CPU, cpu * 1000), (GPU, gpu), ("pods", 10))
        nodes[f"n{i}"] = (allocatable, _merged(draw, node_labels))
    shapes = [TaskShape(tuple(sorted(r.items()))) for r in requests]
    gangs = [draw(_gangs(f"ns/g{i}", shapes, task_labels)) for i in range(draw(st.integers(0, 3)))]
    running = [draw(_running(f"ns/r{i}", shapes, list(nodes))) for i in range(draw(_FEW))]
    found = tuple(
        Node(
            name,
            allocatable,
            labels={"kubernetes.io/hostname": name, **labels},
            residents=tuple(t for g in running for t in g.tasks if t.node == name),
        )
        for name, (allocatable, labels) in nodes.items()
    )
    queues = (Queue("default"), Queue("root"))
    return Snapshot(taken_ms=1_000_000, nodes=found, gangs=(*gangs, *running), queues=queues)


_FEW = st.integers(0, 2)


def _merged(draw: DrawFn, labels: Sequence[Mapping[str, str]]) -> dict[str, str]:
    kept = [each for each in labels if draw(st.booleans())]
    return {name: value for each in kept for name, value in each.items()}


@st.composite
def _gangs(
    draw: DrawFn, key: str, shapes: Sequence[TaskShape], labels: Sequence[Mapping[str, str]]
) -> Gang:
    shape, own_labels = draw(st.sampled_from(shapes)), _merged(draw, labels)
    number = draw(st.integers(1, 3))
    tasks = tuple(
        Task(
            f"{key}-{i}", shape, TaskStatus.PENDING, gang=key, role="w", index=i, labels=own_labels
        )
        for i in range(number)
    )
    least, priority = draw(st.integers(1, number)), draw(_FEW)
    phase = GangPhase.INQUEUE
    return Gang(key, min_member=least, priority=priority, phase=phase, tasks=tasks)


@st.composite
def _running(draw: DrawFn, key: str, shapes: Sequence[TaskShape], nodes: list[str]) -> Gang:
    shape, node = draw(st.sampled_from(shapes)), draw(st.sampled_from(nodes))
    task = Task(f"{key}-0", shape, TaskStatus.RUNNING, gang=key, node=node)
    return Gang(key, min_member=1, phase=GangPhase.RUNNING, tasks=(task,))
