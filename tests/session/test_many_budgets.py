"""Any number of disruption budgets takes a session a limited effort, and none is violated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.decisions import Evict
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Budget
from optsched.cluster.task import Task, TaskStatus
from optsched.plugins.eviction.victims import cover_tasks, covers
from optsched.policy.load import parse_policy
from optsched.session.budgets import MOST_BUDGETS, MOST_READ, MOST_REQUIREMENTS, limit_budgets
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.solver.cpsat.process import InProcess
from tests.session.test_guarantees_hold import contest
from tests.session.test_victims import LIMITS, MODEL
from tests.support.small import shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.cluster.snapshot import Snapshot
    from optsched.session.session import Report

REQUIREMENTS = st.builds(
    Requirement,
    st.sampled_from("abc"),
    st.sampled_from([Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST]),
    st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
)
SELECTORS = st.none() | st.lists(REQUIREMENTS, max_size=3).map(tuple).map(LabelSelector)
LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))


@given(
    st.lists(st.tuples(st.sampled_from(["ns", "other"]), SELECTORS), max_size=4),
    st.lists(st.tuples(st.sampled_from(["ns", "third"]), LABELS), max_size=5),
)
def test_the_masks_of_budgets_agree_with_their_selectors(
    selectors: list[tuple[str, LabelSelector | None]], labels: list[tuple[str, dict[str, str]]]
) -> None:
    budgets = [Budget(f"{namespace}/b", selector, 1) for namespace, selector in selectors]
    tasks = [
        Task(f"{namespace}/p{i}", shape(), TaskStatus.PENDING, labels=own)
        for i, (namespace, own) in enumerate(labels)
    ]
    expected = [[covers(budget, task) for task in tasks] for budget in budgets]
    assert cover_tasks(budgets, tasks).tolist() == expected


def absent(number: int, of: int = 1) -> LabelSelector:
    """Return a selector of all pods that lack `of` labels which no pod has."""
    keys = (f"example.com/k{number}-{i}" for i in range(of))
    return LabelSelector(tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in keys))


def present(number: int) -> LabelSelector:
    """Return a selector that selects no pod."""
    return LabelSelector((Requirement(f"example.com/k{number}", Operator.EXISTS),))


def budgets(
    number: int, selector: Callable[[int], LabelSelector] = absent, namespace: str = "ns"
) -> tuple[Budget, ...]:
    """Return budgets that allow ten evictions each."""
    return tuple(Budget(f"{namespace}/b{i:05d}", selector(i), 10) for i in range(number))


def under(*budgets: Budget) -> Snapshot:
    """Return a node full of pods of a queue above its share, and a gang that may reclaim two."""
    return replace(contest(2, {}, floor=0), budgets=tuple(sorted(budgets, key=lambda b: b.key)))


def decide(snapshot: Snapshot, *, solver: bool = True, period_ms: int | None = 1000) -> Report:
    policy = parse_policy(MODEL.replace("SHARES", "capacity"), "test.yaml")
    context = SessionContext(
        solver=InProcess() if solver else None, limits=LIMITS, period_ms=period_ms
    )
    report = run_session(snapshot, policy, context)
    assert report.trace.violations == ()
    return report


def num_evictions(report: Report) -> int:
    return sum(isinstance(action, Evict) for action in report.plan.actions)


@pytest.mark.parametrize("solver", [True, False])
def test_no_pod_is_evicted_from_a_namespace_with_too_many_budgets(*, solver: bool) -> None:
    many = under(*budgets(MOST_BUDGETS + 1))
    report = decide(many, solver=solver)
    assert num_evictions(report) == 0
    limitation = "no evictions, because of too many disruption budgets: ns"
    assert limitation in report.plan.certificate.limitations
    assert not report.plan.certificate.is_proved
    assert "disruption budget ns/b00000" in str(report.plan.pending["ns/asks"])
    assert report.flaws == ()


@pytest.mark.parametrize("solver", [True, False])
def test_no_pod_of_two_budgets_is_evicted(*, solver: bool) -> None:
    """The eviction API refuses such a pod, however many evictions its budgets allow."""
    assert num_evictions(decide(under(*budgets(1)), solver=solver)) == 2
    report = decide(under(*budgets(2)), solver=solver)
    assert num_evictions(report) == 0
    reason = str(report.plan.pending["ns/asks"])
    assert "stay because of the disruption budget ns/b00000" in reason
    assert "stay because of the disruption budget ns/b00001" in reason
    assert [flaw.key for flaw in report.flaws] == ["ns/b00000", "ns/b00001"]
    assert all("another budget selects the same pods" in flaw.message for flaw in report.flaws)


@pytest.mark.parametrize("solver", [True, False])
def test_other_pods_are_evicted_instead_of_pods_of_two_budgets(*, solver: bool) -> None:
    snapshot = under(*budgets(2, lambda _: LabelSelector((Requirement("a", Operator.EXISTS),))))
    holds = snapshot.gang_by_key["ns/holds"]
    tasks = tuple(replace(t, labels={"a": "b"} if i < 6 else {}) for i, t in enumerate(holds.tasks))
    gangs = tuple(replace(g, tasks=tasks) if g is holds else g for g in snapshot.gangs)
    plan = decide(replace(snapshot, gangs=gangs), solver=solver).plan
    evicted = {action.task for action in plan.actions if isinstance(action, Evict)}
    assert evicted == {tasks[6].key, tasks[7].key}


@pytest.mark.parametrize("solver", [True, False])
def test_a_reclaim_within_a_guarantee_overrides_two_budgets(*, solver: bool) -> None:
    yielding = tuple(replace(b, yields_to_guarantees=True) for b in budgets(2))
    snapshot = replace(contest(2, {}, floor=4), budgets=yielding)
    assert num_evictions(decide(snapshot, solver=solver)) == 2
    one = (replace(yielding[0], yields_to_guarantees=False), yielding[1])
    assert num_evictions(decide(replace(snapshot, budgets=one), solver=solver)) == 0


def test_the_verifier_rejects_evictions_of_pods_of_two_budgets() -> None:
    snapshot = under(*budgets(1))
    policy = parse_policy(MODEL.replace("SHARES", "capacity"), "test.yaml")
    actions = decide(snapshot).plan.actions
    assert judge_actions(snapshot, policy, actions).violations == ()
    violations = judge_actions(under(*budgets(2)), policy, actions).violations
    assert {v.rule for v in violations} == {"victims"}
    assert len(violations) == 2
    assert all("refuses pods of several disruption budgets" in v.detail for v in violations)


def test_few_budgets_are_exact() -> None:
    snapshot = under(*budgets(MOST_BUDGETS, lambda i: absent(i, of=MOST_REQUIREMENTS // 100)))
    assert limit_budgets(snapshot) == (snapshot, ())
    large = under(*budgets(MOST_BUDGETS - 1), *budgets(MOST_BUDGETS, namespace="other"))
    assert limit_budgets(large) == (large, ())


def test_budgets_that_cover_no_pod_of_a_gang_do_not_count() -> None:
    others = budgets(5000, present, "other")
    snapshot = under(*budgets(1), *others, *(replace(b, key=f"ns/{b.key[6:]}x") for b in others))
    limited, protected = limit_budgets(snapshot)
    assert limited.budgets == budgets(1)
    assert protected == ()
    assert num_evictions(decide(snapshot)) == 2


@pytest.mark.parametrize(
    "many",
    [
        budgets(5000),
        budgets(5000, lambda _: LabelSelector()),
        budgets(2, lambda i: absent(i, of=MOST_REQUIREMENTS)),
        budgets(2, lambda _: LabelSelector(present(0).requirements * MOST_READ)),
    ],
    ids=["many", "equal", "long", "too long to read"],
)
@pytest.mark.parametrize("solver", [True, False])
def test_a_session_compares_few_budgets_with_few_pods(
    many: Sequence[Budget], monkeypatch: pytest.MonkeyPatch, *, solver: bool
) -> None:
    num_compared = 0
    accepts = Requirement.accepts

    def count(requirement: Requirement, value: str | None) -> bool:
        nonlocal num_compared
        num_compared += 1
        return accepts(requirement, value)

    monkeypatch.setattr(Requirement, "accepts", count)
    limited, protected = limit_budgets(under(*many))
    assert protected == ("ns",)
    assert limited.budgets == (replace(many[0], selector=LabelSelector(), allowed=0),)
    assert num_evictions(decide(under(*many), solver=solver)) == 0
    assert num_compared <= 4 * MOST_READ
