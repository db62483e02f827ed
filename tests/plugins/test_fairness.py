"""The shares of queues compared with their ideals, which linear programs also compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from optsched.cluster.decisions import PPM
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Queue
from optsched.plugins.accounting import Outcome
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.fairness import _find_exceeded_limits, ideal_parts, queue_shares
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.shares.tree_shares import guaranteed_parts
from optsched.policy.load import load_policy
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from tests.plugins.test_contract import examples
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

BY_WEIGHT = RuleSet.of(Proportion(), Capability())
BY_DESERVED = RuleSet.of(Capacity(), Capability())


def lexicographic(use, limit, floor, gain):
    """Compute the lexicographic max-min of gain·share by linear programs.

    Each round needs one program for the level and one for each queue.
    """
    number = len(gain)
    fixed: dict[int, float] = {}
    for _ in range(number):
        open_ones = [q for q in range(number) if q not in fixed]
        if not open_ones:
            break
        bounds = [(fixed[q], fixed[q]) if q in fixed else (floor[q], 1.0) for q in range(number)]
        rows = np.hstack([use, np.zeros((len(use), 1))])
        least = np.array([[*(-gain[q] * (i == q) for i in range(number)), 1.0] for q in open_ones])
        a = np.vstack([rows, least])
        b = np.concatenate([limit, np.zeros(len(open_ones))])
        level = linprog([0.0] * number + [-1.0], a, b, bounds=[*bounds, (0, None)])
        assert level.status == 0, level.message
        b[len(limit) :] = -level.x[-1]
        a[len(limit) :, -1] = 0.0
        for q in open_ones:
            aim = [-float(i == q) for i in range(number)] + [0.0]
            most = -linprog(aim, a, b, bounds=[*bounds, (0, None)]).fun
            if most * gain[q] <= level.x[-1] * (1 + 1e-7) + 1e-9 or most <= floor[q] + 1e-9:
                fixed[q] = most
            elif most >= 1.0 - 1e-9 and gain[q] <= level.x[-1] + 1e-9:
                fixed[q] = 1.0
    return np.array([fixed.get(q, 1.0) for q in range(number)])


@st.composite
def contests_of_queues(draw):
    """Draw queues that request CPUs and GPUs, some with capabilities, guarantees and parents."""
    queues, gangs = [], []
    for i in range(draw(st.integers(1, 4))):
        ceiling = draw(st.sampled_from([None, None, ((CPU, 6000),), ((GPU, 3),)]))
        floor = draw(st.sampled_from([(), (), ((CPU, 2000),)]))
        parent = draw(st.sampled_from(["root", *(q.name for q in queues)]))
        weight = draw(st.integers(1, 4))
        name = f"q{i}"
        queues.append(
            Queue(name, weight=weight, capability=ceiling, guarantee=floor, parent=parent)
        )
        for j in range(draw(st.integers(0, 2))):
            what = shape(draw(st.integers(1, 3)), draw(st.integers(0, 2)))
            number = draw(st.integers(1, 6))
            gangs.append(gang(f"g{i}{j}", ("w", number, what), queue=name, least=1))
    return cluster([node("n0", 12, 4), node("n1", 8, 4)], gangs, queues)


@examples(60)
@given(contests_of_queues())
def test_filling_finds_what_linear_programs_find(snapshot):
    problem = compile_problem(snapshot)
    requested = problem.queues.requested
    view = _find_exceeded_limits(problem, requested)
    floor = guaranteed_parts(problem.queues.guarantee, requested)
    asking = np.flatnonzero(view.dominant > 0)
    # The guarantees must not exceed the capacity.
    assume(len(asking) and (view.use @ floor <= view.limit).all())
    gain = view.dominant[asking] / problem.queues.weight[asking]
    expected = lexicographic(view.use[:, asking], view.limit, floor[asking], gain)
    assert ideal_parts(problem, BY_WEIGHT)[asking] == pytest.approx(expected, abs=1e-6)


def shares(snapshot, rules=BY_WEIGHT):
    bench = Bench.of(snapshot, rules)
    found = queue_shares(Outcome(bench.problem, bench.greedy()), rules)
    return {s.queue: (s.share, s.ideal) for s in found}


def busy(name: str, tasks: int, **fields: object):
    return gang(name, ("w", tasks, shape(1)), least=1, queue=name, **fields)


def test_queues_share_by_weight_what_they_ask_for():
    queues = [Queue("a", weight=3), Queue("b"), Queue("c")]
    snapshot = cluster([node("n0", 10)], [busy("a", 9), busy("b", 9), busy("c", 1)], queues)
    ideals = {name: ideal for name, (_, ideal) in shares(snapshot).items()}
    assert ideals == {"a": 675_000, "b": 225_000, "c": 100_000}


def test_tasks_can_not_be_cut_so_shares_are_near_their_ideals():
    snapshot = cluster([node("n0", 3)], [busy("a", 3), busy("b", 3)], [Queue("a"), Queue("b")])
    assert shares(snapshot) == {"a": (333_333, 500_000), "b": (333_333, 500_000)}


def test_who_deserves_a_part_comes_before_who_deserves_nothing():
    queues = [Queue("a", deserved=((CPU, 6000),)), Queue("b", deserved=((CPU, 2000),)), Queue("c")]
    snapshot = cluster([node("n0", 10)], [busy(n, 9) for n in "abc"], queues)
    ideals = {name: ideal for name, (_, ideal) in shares(snapshot, BY_DESERVED).items()}
    assert ideals == {"a": 750_000, "b": 250_000, "c": 0}


def test_what_runs_counts_and_strangers_take_their_part_first():
    old = busy("a", 4)
    old = replace(old, tasks=tuple(running(t, "n0") for t in old.tasks))
    snapshot = cluster([node("n0", 10)], [old, busy("b", 8)], [Queue("a"), Queue("b")])
    assert shares(snapshot)["a"] == (400_000, 400_000)
    assert shares(snapshot)["b"] == (600_000, 600_000)


def test_without_a_rule_about_shares_there_are_none():
    snapshot = cluster([node("n0", 10)], [busy("a", 4)], [Queue("a")])
    assert shares(snapshot, RuleSet.of(Capability())) == {}


# --- gangs that cannot start --------------------------------------------------------------------


def shares_of_session(*gangs):
    """Return the ideal shares in a session's certificate, in percent."""
    queues = [Queue("a", capability=((CPU, 12_000),)), Queue("b")]
    policy = load_policy("volcano-compatible", Path.read_text)
    plan = run_session(
        cluster([node("n0", 8), node("n1", 8)], gangs, queues), policy, SessionContext()
    ).plan
    return {s.queue: s.ideal * 100 / PPM for s in plan.certificate.shares}


@pytest.mark.parametrize(
    "never",
    [
        gang("never", ("w", 1, shape(9)), queue="a"),
        gang("never", ("w", 13, shape(1)), queue="a"),
        gang("never", ("w", 4, shape(5)), queue="a"),
        gang("never", ("w", 4, shape(1)), queue="a", problem=Reason(ReasonCode.INVALID_POD, "x")),
        gang("never", ("w", 4, shape(1, 1)), queue="a"),
    ],
    ids=["node", "queue", "nodes", "flaw", "resource"],
)
def test_a_gang_that_can_not_start_counts_for_nothing(never):
    half = gang("half", ("w", 4, shape(1)), queue="a", least=1)
    rest = gang("rest", ("w", 16, shape(1)), queue="b", least=1)
    alone = shares_of_session(half, rest)
    assert alone == {"a": 25, "b": 75}
    assert shares_of_session(half, never, rest) == alone


def test_a_gang_that_only_waits_counts():
    half = gang("half", ("w", 4, shape(1)), queue="a", least=1)
    more = gang("more", ("w", 6, shape(1)), queue="a")
    rest = gang("rest", ("w", 16, shape(1)), queue="b", least=1)
    assert shares_of_session(half, more, rest) == {"a": 50, "b": 50}
