"""Small clusters on which sessions once were wrong, one for each class of findings."""

from __future__ import annotations

import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate
from optsched.cluster.relocation import with_terminating
from optsched.plugins.objectives.gang_levels import dominant_weights
from optsched.problem.compile import compile_problem
from optsched.session.priority_inversions import SPARED
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.oracle.chains import carry_out, check_calm, check_history
from tests.oracle.checks import check_session
from tests.oracle.live import draw_mixed
from tests.oracle.manifests import GPU, Cluster, Manifest
from tests.oracle.metamorphic import check_metamorphic, roomier
from tests.oracle.proofs import check_proof
from tests.oracle.runner import Case
from tests.oracle.sessions import Decided, decide, policy_of, snapshot_of
from tests.support.effort import nightly_except
from tests.support.synthetic_clusters import MixedCluster


def _apart_from(app: str) -> Manifest:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.mark.parametrize("is_disliked", [True, False])
def test_a_pod_that_comes_to_its_nominated_node_keeps_others_away(is_disliked: bool):
    cluster = Cluster()
    cluster.priority_class("high", 10)
    cluster.queue("default")
    cluster.node("n0", {"cpu": 8})
    shy: Manifest = {"labels": {"app": "b"}, "affinity": _apart_from("a")}
    plain: Manifest = {"labels": {"app": "a"}}
    first, second = (plain, shy) if is_disliked else (shy, plain)
    pod = cluster.pod(
        cluster.gang("seated", "default", 1, ("", 0)), "seated-0", {"cpu": 1}, **first
    )
    pod["status"]["nominatedNodeName"] = "n0"
    for name in ("shy", "other"):
        gang = cluster.gang(name, "default", 1, ("high", 10))
        cluster.pod(gang, f"{name}-0", {"cpu": 2}, **(second if name == "shy" else {}))
    assert list(check_session(Decided(cluster, "volcano-default"))) == []
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    placed = {a.task for a in plan.actions if isinstance(a, Allocate)}
    assert placed == {"ml/seated-0", "ml/other-0"}


def test_host_ports_of_a_pod_that_comes_to_its_nominated_node_are_taken():
    cluster = Cluster()
    cluster.queue("default")
    cluster.node("n0", {"cpu": 8})
    for name, size in (("seated", 1), ("large", 3)):
        gang = cluster.gang(name, "default", 1, ("", 0))
        pod = cluster.pod(gang, f"{name}-0", {"cpu": size}, ports=(8080,))
        if name == "seated":
            pod["status"]["nominatedNodeName"] = "n0"
    assert list(check_session(Decided(cluster, "max-throughput"))) == []


def test_a_gang_whose_nominated_node_is_idle_evicts_nobody_for_others():
    cluster = Cluster()
    cluster.priority_class("high", 10)
    cluster.queue("default")
    for i in range(2):
        cluster.node(f"n{i}", {"cpu": 2})
    runs = cluster.gang("runs", "default", 1, ("", 0))
    cluster.pod(runs, "runs-0", {"cpu": 2}, "n0")
    assigned = cluster.pod(
        cluster.gang("seated", "default", 1, ("high", 10)), "seated-0", {"cpu": 2}
    )
    assigned["status"]["nominatedNodeName"] = "n1"
    cluster.pod(cluster.gang("other", "default", 1, ("", 0)), "other-0", {"cpu": 2})
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    assert [(a.task, a.node) for a in plan.actions if isinstance(a, Allocate)] == [
        ("ml/seated-0", "n1")
    ]
    assert len(plan.actions) == 1
    del assigned["status"]["nominatedNodeName"]
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    assert [type(a) for a in plan.actions] == [Allocate]
    assert list(check_calm(Decided(cluster, "volcano-default"))) == []


def _on(node: str) -> Manifest:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def test_pods_leave_other_nodes_for_what_their_queue_deserves():
    cluster = Cluster()
    cluster.priority_class("high", 10)
    for name in ("q0", "q1"):
        cluster.queue(name)
    for i in range(4):
        cluster.node(f"n{i}", {"cpu": 2})
    for i in range(2):
        low = cluster.gang(f"low-{i}", "q0", 1, ("", 0))
        cluster.pod(low, f"low-{i}-0", {"cpu": 2}, f"n{i}", **_on(f"n{i}"))
    other = cluster.gang("other", "q1", 2, ("", 0))
    for i in range(2):
        cluster.pod(other, f"other-{i}", {"cpu": 2}, **({} if i else _on("n2")))
    high = cluster.gang("high", "q0", 1, ("high", 10))
    cluster.pod(high, "high-0", {"cpu": 2}, **_on("n3"))
    assert list(check_session(Decided(cluster, "volcano-default"))) == []
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    assert [a.task for a in plan.actions if isinstance(a, Evict)] == ["ml/low-0-0"]


@pytest.mark.parametrize("is_nominated", [True, False])
def test_a_gang_that_waits_for_long_takes_no_nominated_node(is_nominated: bool):
    cluster = Cluster()
    cluster.priority_class("high", 10)
    cluster.queue("default")
    cluster.node("n0", {"cpu": 8})
    runs = cluster.gang("runs", "default", 1, ("high", 10))
    cluster.pod(runs, "runs-0", {"cpu": 5}, "n0")
    low = cluster.gang("seated", "default", 1, ("", 0), created=590)
    assigned = cluster.pod(low, "seated-0", {"cpu": 2})
    if is_nominated:
        assigned["status"]["nominatedNodeName"] = "n0"
    cluster.pod(cluster.gang("large", "default", 1, ("high", 10)), "large-0", {"cpu": 4})
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    placed = [a.task for a in plan.actions if isinstance(a, Allocate)]
    assert placed == (["ml/seated-0"] if is_nominated else [])


def test_a_queue_evicts_none_of_its_pods_elsewhere_to_claim_what_it_deserves():
    cluster = Cluster()
    cluster.priority_class("high", 10)
    cluster.queue("q0", deserved={"cpu": "2", "nvidia.com/gpu": "2"})
    cluster.queue("q1", deserved={"nvidia.com/gpu": "0"})
    cluster.node("n0", {"cpu": 4})
    cluster.node("n1", {"cpu": 2, "nvidia.com/gpu": 2})
    low = cluster.gang("low", "q0", 1, ("", 0))
    cluster.pod(low, "low-0", {"cpu": 2}, "n0")
    lent = cluster.gang("lent", "q1", 1, ("", 0))
    cluster.pod(lent, "lent-0", {"cpu": 1, "nvidia.com/gpu": 2}, "n1")
    high = cluster.gang("high", "q0", 1, ("high", 10))
    cluster.pod(high, "high-0", {"cpu": 1, "nvidia.com/gpu": 2})
    assert list(check_session(Decided(cluster, "capacity-hierarchical"))) == []
    plan = decide(snapshot_of(cluster), policy_of("capacity-hierarchical")).plan
    assert plan.actions == ()


def test_pods_do_not_leave_for_a_ceiling_that_the_policy_does_not_have():
    cluster = Cluster()
    cluster.priority_class("high", 10)
    cluster.queue("q0", capability={"cpu": "2"})
    for i in range(2):
        cluster.node(f"n{i}", {"cpu": 2})
        low = cluster.gang(f"low-{i}", "q0", 1, ("", 0))
        cluster.pod(low, f"low-{i}-0", {"cpu": 2}, f"n{i}")
    high = cluster.gang("high", "q0", 1, ("high", 10))
    cluster.pod(high, "high-0", {"cpu": 2}, **_on("n1"))
    both = ["ml/low-0-0", "ml/low-1-0"]
    for model, expected in (("max-throughput", both[1:]), ("volcano-default", both)):
        assert list(check_session(Decided(cluster, model))) == []
        plan = decide(snapshot_of(cluster), policy_of(model)).plan
        assert sorted(a.task for a in plan.actions if isinstance(a, Evict)) == expected


def test_no_plan_is_worse_than_that_of_a_pipeline_that_keeps_gangs_off_reserved_room():
    """The pipeline once evicted pods for a gang with a reservation and for other gangs together."""
    cluster = Case(5001, 110).draw()
    assert list(check_session(Decided(cluster, "volcano-default"))) == []


def test_plans_with_different_victims_are_compared_in_one_unit():
    """Plan values use one unit, even after an eviction removes a task class.

    Without the class, memory in bytes was once compared with milli-CPUs.
    """
    cluster = Cluster()
    cluster.queue("q0", deserved={"cpu": "1"})
    cluster.queue("q1", deserved={"cpu": "4"})
    cluster.node("n0", {"cpu": 2, "memory": "2Gi", "nvidia.com/gpu": 8})
    cluster.node("n1", {"cpu": 2, "memory": "2Gi", "nvidia.com/gpu": 8})
    lent = cluster.gang("lent", "q0", 2, ("", 0))
    for i, node in enumerate(("n0", "n1", "")):
        cluster.pod(lent, f"lent-{i}", {"cpu": 2, "nvidia.com/gpu": 1}, node)
    cluster.pod(cluster.gang("other", "q1", 1, ("", 0)), "other-0", {"cpu": 1, "memory": "1Gi"})
    snapshot = snapshot_of(cluster)
    ended = compile_problem(with_terminating(snapshot, {"ml/lent-0", "ml/lent-1"}), None)
    assert dominant_weights(compile_problem(snapshot, None)).unit == "milli-CPU"
    assert dominant_weights(ended).unit == "milli-CPU"
    assert len(ended.classes.shapes) == 1


def test_a_gang_that_leaves_and_starts_again_adds_nothing_to_admission():
    cluster = Cluster()
    cluster.queue("q0", deserved={"cpu": "1"})
    cluster.queue("q1", deserved={"cpu": "4"})
    cluster.node("n0", {"cpu": 4})
    cluster.node("n1", {"cpu": 2})
    ends = cluster.gang("ends", "q0", 1, ("", 0))
    cluster.pod(ends, "ends-0", {"cpu": 2}, "n0")
    cluster.pod(ends, "ends-1", {"cpu": 2})
    cluster.pod(cluster.gang("other", "q1", 1, ("", 0)), "other-0", {"cpu": 4})
    plan = [
        Evict("ml/ends-0", "n0", "reclaim", "ml/other"),
        Allocate("ml/ends-1", "n1", "ml/ends"),
        Nominate("ml/other-0", "n0", "ml/other"),
    ]
    judged = judge_actions(snapshot_of(cluster), policy_of("crater"), plan)
    admitted = [r.value for r in judged.levels if r.name.startswith("admission")]
    assert sum(admitted) == 4000


def test_what_borrows_is_no_better_plan():
    """Both plans are compared without loans.

    The plan of a longer search was once compared with loans, and the session's plan without.
    """
    assert list(check_proof(Decided(Case(7001, 865).draw(), "volcano-default"))) == []


@pytest.mark.parametrize(
    "model", nightly_except(["volcano-default", "drf-lexicographic"], ["volcano-default"])
)
def test_a_victim_that_serves_the_next_gang_is_evicted_for_that_one(model: str):
    """Every victim has a preemptor on its node.

    A victim without a preemptor once made the verifier reject the whole plan.
    """
    cluster = Case(7002, 614).draw()
    assert list(check_session(Decided(cluster, model))) == []
    plan = decide(snapshot_of(cluster), policy_of(model)).plan
    assert len([a for a in plan.actions if isinstance(a, Evict)]) == 4


@pytest.mark.parametrize(
    ("number", "model"),
    [
        # The repair of a rejected plan was worse than the pipeline's plan. A gang's preemption in
        # one queue was needed for its claim on another queue.
        (835, "capacity-hierarchical"),
        # Gangs without evictions lost their nodes in the round with evictions. In a FIFO queue,
        # gangs with evictions passed them.
        (338, "max-throughput"),
    ],
)
def test_evictions_for_some_gangs_refuse_no_others(number: int, model: str):
    assert list(check_session(Decided(Case(8104, number).draw(), model))) == []


def test_victims_of_less_important_gangs_may_help_a_preemptor():
    """The minimum of victims allows for victims of other gangs.

    A preemptor's own minimum was once the bound, although another gang could reclaim with fewer
    victims in total.
    """
    assert list(check_proof(Decided(Case(8104, 998).draw(), "min-fragmentation"))) == []


def test_what_leaves_a_queue_counts_for_the_claims_of_its_other_gangs():
    """Victims count as released capacity for all gangs of the claiming queue.

    An earlier gang's claim once limited their queue to its share, so a gang had no node of its
    victims.
    """
    cluster = MixedCluster(num_nodes=20, num_pods=80, num_shapes=20, fill=0.84, seed=4)
    report = decide(cluster.snapshot(), policy_of("volcano-default"))
    assert report.trace.violations == ()
    assert any(isinstance(a, Evict) for a in report.plan.actions)


def test_lenders_return_what_they_hold_for_certain():
    """A lender counts as above its share only by gangs that cannot move to other nodes."""
    cluster = MixedCluster(22, 72, 20, 4, 2, fill=0.908084694727612, seed=7000088)
    report = decide(cluster.snapshot(), policy_of("capacity-hierarchical"))
    assert report.trace.violations == ()
    assert any(isinstance(a, Evict) for a in report.plan.actions)


def test_a_claim_binds_only_for_lenders_outside_its_queue():
    """The share of a department limits other departments, but not its teams."""
    cluster = Cluster()
    cluster.priority_class("high", 10)
    due = {"d0": 5, "d0-0": 5, "d0-1": 1, "d1": 1, "d1-0": 1}
    for name, gpus in due.items():
        parent = {"parent": name.partition("-")[0]} if "-" in name else {}
        cluster.queue(name, deserved={GPU: str(gpus)}, **parent)
    gangs = {
        name: cluster.gang(name, queue, 1, ("", 0))
        for name, queue in (("own", "d0-0"), ("team", "d0-1"), ("far", "d1-0"))
    }
    for i, (first, second) in enumerate(
        [("team", "team"), ("own", ""), ("own", ""), ("own", ""), ("team", ""), ("far", "")]
    ):
        cluster.node(f"n{i}", {"cpu": 8, GPU: 2})
        for k, name in enumerate((first, second)):
            cluster.pod(gangs.get(name), f"{name or 'foreign'}-{i}{k}", {"cpu": 1, GPU: 1}, f"n{i}")
    wants = cluster.gang("wants", "d0-0", 1, ("high", 10))
    cluster.pod(wants, "wants-0", {"cpu": 1, GPU: 2})
    assert list(check_session(Decided(cluster, "capacity-hierarchical"))) == []
    # Without a solver, gangs evict pods sequentially, and never jointly.
    report = run_session(snapshot_of(cluster), policy_of("capacity-hierarchical"), SessionContext())
    victims = {a.task for a in report.plan.actions if isinstance(a, Evict)}
    assert victims == {"ml/team-00", "ml/team-01"}


def test_victims_that_nobody_needs_any_more_stay():
    """A victim for a quota stays if the counted gang is not placed after all."""
    cluster = Case(8108, 369).draw()
    assert list(check_session(Decided(cluster, "min-fragmentation"))) == []
    plan = decide(snapshot_of(cluster), policy_of("min-fragmentation")).plan
    assert len([a for a in plan.actions if isinstance(a, Evict)]) == 4


def test_shares_of_gpus_do_not_move_when_a_pod_leaves():
    """The guessed GPUs of pods without an annotation do not change after evictions."""
    cluster = Case(8108, 1847).draw()
    assert list(check_history(Decided(cluster, "gpus-shared"))) == []


@pytest.mark.parametrize("number", nightly_except([85, 464], [464]))
def test_a_queue_with_loans_may_gain_no_gang(number: int):
    """The judge of plans with loans once failed on a queue that gained no gang."""
    assert list(check_session(Decided(Case(8106, number).draw(), "volcano-default"))) == []


@pytest.mark.parametrize(("number", "level", "value"), [(404, 0, 6000), (128, 1, 24000)])
def test_victims_of_all_gangs_together_serve_gangs_that_use_their_capacity(
    number: int, level: int, value: int
):
    """A victim that serves no entitled gang on its node does not make the search discard other
    victims.
    """
    cluster = Case(8200, number).draw()
    assert list(check_session(Decided(cluster, "volcano-default"))) == []
    plan = decide(snapshot_of(cluster), policy_of("volcano-default")).plan
    assert plan.certificate.levels[level].value == value


def test_victims_that_leave_for_the_share_of_their_queue_alone_do_not_end_the_search():
    """A victim without a preemptor on its node does not make the search discard other victims."""
    snapshot = draw_mixed(25, 2)[0].snapshot()
    context = SessionContext(None, InProcess(), limits=Limits(None, 2.0, num_workers=1))
    report = run_session(snapshot, policy_of("volcano-default"), context)
    assert report.trace.violations == ()
    levels = {level.name: level for level in report.plan.certificate.levels}
    assert levels["admission, priority 100"].value == 129_006_408
    assert levels["admission, priority 10"].value == levels["admission, priority 10"].bound


def test_gangs_that_use_the_room_of_reclaimed_victims_are_named_as_their_preemptors():
    """Each victim names the gang that uses its node.

    The victims were once selected for the share of one gang's queue, and other gangs used the
    victims' nodes.
    """
    snapshot = snapshot_of(Case(8117, 1945).draw())
    assert decide(snapshot, policy_of("min-fragmentation")).trace.violations == ()


def test_a_search_begins_with_no_loans():
    """A search that began beyond the share of a queue once counted loans as admitted."""
    snapshot, policy = snapshot_of(roomier(Case(8118, 1976).draw())), policy_of("volcano-default")
    plan = decide(snapshot, policy).plan
    judged = judge_actions(snapshot, policy, plan.actions).levels
    assert {r.name: r.value for r in judged} == {r.name: r.value for r in plan.certificate.levels}


def test_a_gang_for_which_pods_left_passes_nobody_in_a_fifo_queue():
    """A gang's nomination once stayed while an earlier gang lost its nominations to other gangs."""
    assert list(check_session(Decided(Case(8121, 1292).draw(), "crater"))) == []


def test_a_needless_victim_leaves_with_its_gang():
    """A victim without a preemptor once was the only pod left of an evicted gang."""
    assert list(check_session(Decided(Case(8121, 1982).draw(), "drf-lexicographic"))) == []


def test_pods_on_nodes_that_are_not_ready_leave_no_gang_broken():
    """Pods on nodes that are not Ready are no victims, so their gang is not evicted as a whole."""
    decided = Decided(Case(9302, 30, is_mixed=True).draw(), "min-fragmentation")
    assert list(check_session(decided)) == []


def test_a_gang_leaves_whole_only_for_those_that_it_has_to_leave_for():
    """A gang once was evicted for one pod, lost its other nodes to a third gang, and was evicted
    again.
    """
    decided = Decided(Case(9302, 189, is_mixed=True).draw(), "max-throughput")
    assert list(check_calm(decided)) == []


def test_nominated_pods_count_for_the_spread_of_pods_that_are_nominated_after_them():
    """Two nominations once kept a spread constraint separately, but violated it together."""
    assert (
        list(check_session(Decided(Case(9501, 464, is_mixed=True).draw(), "volcano-default"))) == []
    )


def test_a_gang_that_starts_for_the_capacity_of_needless_victims_makes_no_plan_refused():
    """A gang does not use capacity that a more important gang of its queue is entitled to.

    The usage of the queue depends on its needless victims. With these victims, a more important
    gang uses the queue's whole share.
    """
    cluster = Case(9703, 338, is_mixed=True).draw()
    assert list(check_session(Decided(cluster, "volcano-default"))) == []


def test_no_gang_starts_at_the_expense_of_more_important_pods_of_its_queue():
    """A gang of priority 0 once took idle nodes, so that a gang of priority 100 preempted one of
    priority 10. The gang of priority 10 then evicted the gang of priority 0.
    """
    decided = Decided(Case(19001, 1100).draw(), "drf-lexicographic")
    assert list(check_calm(decided)) == []
    later = Decided(carry_out(decided.cluster, decided.plan), "drf-lexicographic")
    assert SPARED in later.plan.certificate.limitations
    assert {a.task for a in later.plan.actions if isinstance(a, Evict)} == {"ml/g7-0", "ml/g7-1"}
    assert list(check_session(later)) == []


def test_a_share_that_is_rounded_up_by_one_base_unit_is_no_finding():
    """A share of 4 GiB and one byte is three steps of 2 GiB. Twice this share, 8 GiB, is two steps
    of 4 GiB.
    """
    decided = Decided(Case(41001, 1735).draw(), "min-fragmentation")
    assert list(check_metamorphic(decided)) == []


def test_presolve_keeps_the_best_plan():
    """OR-Tools 9.15 once removed all best plans, and CP-SAT proved a plan with 82 % of the value.

    See google/or-tools issue 5293.
    """
    decided = Decided(Case(41001, 3169).draw(), "max-throughput")
    assert list(check_proof(decided)) == []
    (level,) = decided.plan.certificate.levels
    assert (level.value, level.status) == (14_513_157_865, LevelStatus.OPTIMAL)


@pytest.mark.nightly
def test_ten_times_the_work_begins_with_the_searches_of_less():
    """Longer searches once chose other victims, and the plan was worse."""
    decided = Decided(Case(9801, 595).draw(), "drf-lexicographic")
    assert list(check_session(decided)) == []
