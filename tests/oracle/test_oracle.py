"""Run a small part of the oracle with fixed draws.

`make oracle SEED=N` draws other clusters.
"""

from __future__ import annotations

from random import Random

import pytest

from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Evict,
    LevelResult,
    LevelStatus,
    Nominate,
    Plan,
    Sense,
)
from optsched.solver.cpsat.process import InProcess
from tests.oracle.chains import carry_out, check_rest
from tests.oracle.checks import check_session
from tests.oracle.clusters import FAMILIES, MEDIUM, MIXED, draw_cluster
from tests.oracle.live import OPEN, beyond_bound, check_live
from tests.oracle.manifests import Cluster
from tests.oracle.metamorphic import split
from tests.oracle.minimise import minimised
from tests.oracle.proofs import check_starvation, model_of, worker
from tests.oracle.runner import run_cases
from tests.oracle.sessions import Decided, Worth, decide, first_loss, policy_of, snapshot_of
from tests.support.effort import num_examples
from tests.support.synthetic_clusters import MixedCluster

SEED, COUNT = 15, 60


def test_nothing_is_found():
    tally = run_cases(SEED, range(num_examples(COUNT)))
    assert {family for family, _ in tally.runs} == set(FAMILIES)
    found = [
        f"{finding.kind}: make oracle SEED={SEED} ONLY={case.number} ({finding.model})"
        for case, finding in tally.found
    ]
    assert not found, "\n".join(found)


def test_nothing_is_found_where_parts_of_all_families_meet():
    tally = run_cases(SEED, range(num_examples(40)), is_mixed=True)
    assert {family for family, _ in tally.runs} == {MIXED}
    assert not tally.found, [f"{case.command}: {finding.kind}" for case, finding in tally.found]


def test_live_sessions_are_checked():
    """A small cluster has no finding, and a bound that is too tight is found."""
    snapshot, policy = MixedCluster(8, 24, 8, 2, 1, seed=3).snapshot(), policy_of("crater")
    assert [
        kind for kind, _ in check_live(snapshot, policy, InProcess(), 100) if kind != OPEN
    ] == []
    level = LevelResult("admission", "cpu", Sense.MAX, 5, 7, LevelStatus.FEASIBLE)
    mine, other = (Worth((("admission", True, value),), ()) for value in (5, 8))
    certificate = Certificate((level,), "greedy", 0.0, "")
    assert "bound 7" in beyond_bound(certificate, mine, other)
    assert not beyond_bound(certificate, other, mine)


@pytest.mark.parametrize("number", [74, 81, 111, 125])
def test_a_plan_with_loans_is_worth_what_its_certificate_says(number: int):
    """Loans do not count as admission, and the correct gangs of a queue borrow."""
    snapshot, policy = snapshot_of(draw_cluster("queues", 78, number)), policy_of("volcano-default")
    plan = decide(snapshot, policy).plan
    told = [(level.name, level.value) for level in plan.certificate.levels]
    assert any(name.startswith("lent") and value for name, value in told)
    judged = Worth.as_judged(snapshot, policy, plan.actions)
    assert [(name, value) for name, _, value in judged.levels] == told
    assert judged.violations == ()
    assert first_loss(judged, Worth.of(snapshot, policy, plan.actions)) is None


class TestTheJointModel:
    """The joint model finds better plans if a certificate claims too much."""

    def test_two_gangs_that_one_victim_would_serve(self):
        cluster = Cluster()
        cluster.priority_class("high", 100)
        cluster.queue("default")
        for name, cpu in (("n0", 3), ("n1", 2)):
            cluster.node(name, {"cpu": cpu})
        low = cluster.gang("low", "default", 1, ("", 0))
        cluster.pod(low, "low-0", {"cpu": 3}, "n0")
        other = cluster.gang("other", "default", 1, ("", 0))
        cluster.pod(other, "other-0", {"cpu": 2}, "n1")
        for i in range(3):
            high = cluster.gang(f"high-{i}", "default", 1, ("high", 100))
            cluster.pod(high, f"high-{i}-0", {"cpu": 1})
        found = worker().ask(
            {"document": cluster.document(), "policy": model_of("volcano-default")}
        )
        assert [task for task, _, _ in found["evict"]] == ["ml/low-0"]
        assert len(found["nominate"]) == 3

    def test_what_gangs_are_worth_and_the_most_that_could_start(self):
        cluster = Cluster()
        cluster.queue("default")
        cluster.node("n0", {"cpu": 4})
        runs = cluster.gang("runs", "default", 1, ("", 0))
        cluster.pod(runs, "runs-0", {"cpu": 1}, "n0", notes={"volcano.sh/preemptable": "false"})
        for name, cpu in (("a", 2), ("b", 2), ("c", 1)):
            cluster.pod(cluster.gang(name, "default", 1, ("", 0)), f"{name}-0", {"cpu": cpu})
        request = {"document": cluster.document(), "policy": model_of("volcano-default")}
        told = worker().ask({**request, "started": ["ml/a"]})
        assert told == {"value": 2000, "most": 3000}

    def test_a_gang_that_waits_beside_room_starves(self):
        cluster = Cluster()
        cluster.queue("default")
        cluster.node("n0", {"cpu": 2})
        cluster.pod(cluster.gang("a", "default", 1, ("", 0)), "a-0", {"cpu": 2})
        (finding,) = check_starvation(Decided(cluster, "volcano-default"))
        assert finding.text == "could start at rest: ml/a"
        cluster.of_kind("Node")[0]["spec"]["unschedulable"] = True
        assert list(check_starvation(Decided(cluster, "volcano-default"))) == []


def test_a_queue_is_split_in_two_equal_ones():
    cluster = Cluster()
    cluster.queue("q0", weight=2, deserved={"cpu": "5"})
    cluster.queue("default")
    for i in range(3):
        cluster.gang(f"g{i}", "q0", 1, ("", 0))
    halves = split(cluster, Random(0))
    assert halves is not None
    specs = {q["metadata"]["name"]: q["spec"] for q in halves.of_kind("Queue")}
    assert specs == {
        "q0": {"weight": 2, "deserved": {"cpu": "2"}},
        "other-half": {"weight": 2, "deserved": {"cpu": "2"}},
        "default": {"weight": 2},
    }
    queues = [g["spec"]["queue"] for g in halves.of_kind("PodGroup")]
    assert queues == ["other-half", "q0", "other-half"]


def test_gangs_of_several_priorities_in_one_tier_are_each_asked():
    cluster = Cluster()
    cluster.priority_class("low", 10)
    cluster.queue("q0")
    running = cluster.gang("running", "q0", 1, ("", 0))
    for i in range(2):
        cluster.node(f"n{i}", {"cpu": 2})
        cluster.pod(running, f"running-{i}", {"cpu": 2}, f"n{i}")
    for name, priority in (("more", ("low", 10)), ("less", ("", 0))):
        cluster.pod(cluster.gang(name, "q0", 1, priority), f"{name}-0", {"cpu": 2})
    assert list(check_session(Decided(cluster, "max-throughput"))) == []
    plan = decide(snapshot_of(cluster), policy_of("max-throughput")).plan
    assert [a.gang for a in plan.actions if isinstance(a, Nominate)] == ["ml/more"]


def test_a_plan_that_is_better_on_a_level_is_told():
    mine = Worth((("admission", True, 1), ("fair share", False, 3)), ())
    assert first_loss(mine, mine) is None
    better = Worth((("admission", True, 1), ("fair share", False, 2), ("victims", False, 1)), ())
    assert str(first_loss(mine, better)) == "level fair share: 2 against 3"
    assert first_loss(better, mine) is None
    with_victims = Worth((*mine.levels, ("victims", False, 1)), ())
    assert str(first_loss(with_victims, mine)) == "level victims: 0 against 1"


def test_plans_are_carried_out():
    cluster = Cluster()
    cluster.queue("default")
    cluster.node("n0", {"cpu": 2})
    low = cluster.gang("low", "default", 1, ("", 0))
    cluster.pod(low, "low-0", {"cpu": 2}, "n0")
    high = cluster.gang("high", "default", 1, ("", 0))
    cluster.pod(high, "high-0", {"cpu": 2})
    actions = (
        Evict("ml/low-0", "n0", "preempt", "ml/high"),
        Nominate("ml/high-0", "n0", "ml/high"),
    )
    after = carry_out(cluster, Plan(actions, Certificate((), "", 0, "")))
    low_pod, high_pod = after.of_kind("Pod")
    assert "nodeName" not in low_pod["spec"]
    assert high_pod["status"]["nominatedNodeName"] == "n0"
    later = carry_out(
        after, Plan((Allocate("ml/high-0", "n0", "ml/high"),), Certificate((), "", 0, ""))
    )
    assert later.of_kind("Pod")[1]["spec"]["nodeName"] == "n0"
    assert later.of_kind("PodGroup")[1]["status"]["phase"] == "Running"


def test_the_pipeline_alone_comes_to_rest():
    """Queues here exceed what they deserve of GPUs, and hold fewer CPUs than they deserve."""
    cluster = draw_cluster("mixed", 15002, 2, MEDIUM)
    assert list(check_rest(Decided(cluster, "capacity-hierarchical"))) == []


def test_a_cluster_is_minimised_to_what_a_finding_takes():
    cluster = draw_cluster("running", 1, 0)
    names = [g["metadata"]["name"] for g in cluster.of_kind("PodGroup")]
    small = minimised(
        cluster, lambda c: any(g["metadata"]["name"] == names[2] for g in c.of_kind("PodGroup"))
    )
    assert [g["metadata"]["name"] for g in small.of_kind("PodGroup")] == [names[2]]
    assert small.of_kind("Pod") == small.of_kind("Node") == []
