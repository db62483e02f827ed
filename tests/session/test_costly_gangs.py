"""Any number of pods with many terms takes a session a limited effort, and each gets its turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from optsched.cluster.amounts import amount_of
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import GangPhase, Quota
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.task_shape import MOST_TERMS
from optsched.formats.snapshots.assembly import assemble
from optsched.kube.scheduler.metrics import figures_of
from optsched.session import costly_gangs
from optsched.session.costly_gangs import (
    FREE,
    GANG_STEPS,
    LEFT,
    MOST,
    MOST_OF_GANG,
    NUMBER_TURN_MS,
    POD_STEPS,
    PORT_COST,
    SELECTED_PER_COST,
    SHAPE_STEPS,
    STEPS_PER_MS,
    TOO_MANY,
    TURN_MS,
    defer_gangs,
    keep_reasons,
    separate_blocked_gangs,
    without_costly_gangs,
    without_excess_gangs,
)
from optsched.session.session import SessionContext, run_session
from optsched.session.snapshot_equivalence import ask_again_ms
from optsched.solver.cpsat.level_model import Limits
from tests.formats.objects import group, mounting, node, pod, queue
from tests.plugins.test_device_claims import GROUP, POLICY
from tests.session.test_dear_objects import PREFERRED, REQUIRED, near, resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.snapshot import Snapshot


def terms(number: int, count: int = MOST_TERMS) -> list[dict[str, Any]]:
    """Return terms that no other pod has."""
    return [near(1000 * number + i) for i in range(count)]


def constrained(term: dict[str, Any]) -> dict[str, Any]:
    return {**term, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


def spread(number: int) -> dict[str, Any]:
    return {"topologySpreadConstraints": [constrained(term) for term in terms(number)]}


def preferred(number: int) -> dict[str, Any]:
    found = [{"weight": 1, "podAffinityTerm": term} for term in terms(number)]
    return {"affinity": {"podAntiAffinity": {PREFERRED: found}}}


def named(number: int) -> dict[str, Any]:
    containers = resources(MOST_TERMS - 1)
    containers[0]["resources"]["requests"]["cpu"] = f"{number + 1}m"
    return {"containers": containers}


def requiring(number: int) -> dict[str, Any]:
    """Return a node affinity with 1 000 requirements that no other pod has."""
    absent = [{"key": f"k{number}-{i}", "operator": "DoesNotExist"} for i in range(1000)]
    required = {"nodeSelectorTerms": [{"matchExpressions": absent}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: required}}}


def excluding(number: int) -> dict[str, Any]:
    """Return a node affinity that names 10 000 values."""
    values = [f"{number}-{i}" for i in range(10_000)]
    away = [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}]
    return {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": away}]}}
        }
    }


def tolerating(number: int) -> dict[str, Any]:
    return {"tolerations": [{"key": f"k{number}-{i}", "operator": "Exists"} for i in range(1000)]}


FAMILIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "affinity": lambda n: {"affinity": {"podAffinity": {REQUIRED: terms(n)}}},
    "anti-affinity": lambda n: {"affinity": {"podAntiAffinity": {REQUIRED: terms(n)}}},
    "preferred": preferred,
    "spread": spread,
    "volumes": lambda n: mounting(*(f"c{n}-{i}" for i in range(MOST_TERMS))),
    "resources": named,
    "node affinity": requiring,
    "values": excluding,
    "tolerations": tolerating,
}


def crowd(spec: Callable[[int], dict[str, Any]], number: int, namespace: str = "ns") -> Snapshot:
    pods = [pod(f"p{i:03d}", spec(i), namespace=namespace) for i in range(number)]
    plain = pod("plain", namespace="other")
    snapshot = assemble([node("n1"), queue("default"), *pods, plain]).snapshot
    assert not any(gang.problem for gang in snapshot.gangs)
    return snapshot


def cost_of(snapshot: Snapshot) -> int:
    gangs = (gang for gang in snapshot.gangs if gang.problem is None)
    shapes = {task.shape for gang in gangs for task in gang.tasks}
    return sum(costly_gangs._cost(shape) for shape in shapes)


def left_in(snapshot: Snapshot) -> set[str]:
    return {g.key for g in without_costly_gangs(snapshot).gangs if g.problem == LEFT}


@pytest.mark.parametrize("spec", FAMILIES.values(), ids=FAMILIES)
def test_a_session_considers_a_limited_number_of_terms(
    spec: Callable[[int], dict[str, Any]],
) -> None:
    snapshot = crowd(spec, 120)
    assert cost_of(snapshot) > MOST
    assert cost_of(without_costly_gangs(snapshot)) <= MOST + FREE
    assert 0 < len(left_in(snapshot)) < 120


def binding(*numbers: int) -> dict[str, Any]:
    """Return a container that binds host ports."""
    ports = [{"containerPort": number, "hostPort": number} for number in numbers]
    return {"containers": [{"name": "c", "image": "x", "ports": ports}]}


def test_a_session_considers_a_limited_number_of_host_ports() -> None:
    snapshot = crowd(lambda n: binding(*range(1 + 100 * n, 101 + 100 * n)), 120)
    kept = [gang for gang in without_costly_gangs(snapshot).gangs if gang.problem is None]
    ports = {port for gang in kept for task in gang.tasks for port in task.shape.host_ports}
    assert 0.9 * MOST < PORT_COST * len(ports) <= MOST
    assert "other/pod:plain" in {gang.key for gang in kept}
    assert left_in(crowd(lambda n: binding(*range(100), 200 + n), 120)) == set()


BROAD: dict[str, Callable[[int], dict[str, Any]]] = {
    "affinity": lambda n: {"affinity": {"podAffinity": {REQUIRED: terms(n, 1)}}},
    "anti-affinity": lambda n: {"affinity": {"podAntiAffinity": {REQUIRED: terms(n, 1)}}},
    "spread": lambda n: {"topologySpreadConstraints": [constrained(terms(n, 1)[0])]},
}


@pytest.mark.parametrize("spec", BROAD.values(), ids=BROAD)
def test_a_session_considers_a_limited_number_of_pods_that_terms_select(
    spec: Callable[[int], dict[str, Any]],
) -> None:
    """Each of 1 000 pods has one term, which selects all of them: a million pairs."""
    snapshot = crowd(spec, 1000)
    left = left_in(snapshot)
    num_pods = len(snapshot.gangs)
    assert 200 < num_pods - len(left) <= MOST // (num_pods // SELECTED_PER_COST) + 1
    assert "other/pod:plain" not in left
    always = left
    for turn in range(60):
        always = always & left_in(replace(snapshot, taken_ms=turn * TURN_MS))
    assert always == set()


def labelled(number: int, named: Callable[[int], str], *, own: str = "ns") -> Snapshot:
    """Return pods with one term each, which selects the pods of namespace `own` by a label."""
    pods = []
    for i in range(number):
        selector = {"matchLabels": {"app": named(i)}}
        term = {"topologyKey": "zone", "labelSelector": selector, "namespaces": [own]}
        found = pod(f"p{i:04d}", {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}})
        found["metadata"]["labels"] = {"app": f"a{i}", "common": "yes"}
        pods.append(found)
    return assemble([node("n1"), queue("default"), *pods]).snapshot


@pytest.mark.parametrize(
    "snapshot",
    [
        labelled(1000, lambda i: f"a{i}"),
        labelled(1000, lambda _: "a0"),
        labelled(1000, lambda i: f"a{i}", own="other"),
    ],
    ids=["each its own pods", "all the same pods", "pods of another namespace"],
)
def test_a_session_considers_all_gangs_whose_terms_select_few_pods(snapshot: Snapshot) -> None:
    assert without_costly_gangs(snapshot) is snapshot


def test_terms_that_name_a_common_label_select_many_pods() -> None:
    snapshot = labelled(1000, lambda i: f"a{i}")
    shapes = [gang.tasks[0].shape for gang in snapshot.gangs]
    common = LabelSelector((Requirement("common", Operator.IN, ("yes",)),))
    gangs = []
    for i, (gang, shape) in enumerate(zip(snapshot.gangs, shapes, strict=True)):
        term = replace(shape.pod_anti_affinity[0], selector=common, topology_key=f"zone-{i}")
        task = replace(gang.tasks[0], shape=replace(shape, pod_anti_affinity=(term,)))
        gangs.append(replace(gang, tasks=(task,)))
    assert len(left_in(replace(snapshot, gangs=tuple(gangs)))) > 400


def test_gangs_that_are_left_say_so_and_others_start() -> None:
    snapshot = crowd(FAMILIES["spread"], 40)
    plan = run_session(snapshot, POLICY, SessionContext(period_ms=1000)).plan
    assert "other/plain" in plan.binds
    left = left_in(snapshot)
    assert f"{len(left)} gangs left to a later session" in plan.certificate.limitations
    assert {key for key, reason in plan.pending.items() if reason == LEFT} == left
    assert str(LEFT).startswith("WaitsForItsTurn: its pods have many affinity terms")


def test_a_session_without_period_considers_every_gang() -> None:
    """No later session follows, for example after `optsched solve`."""
    snapshot = crowd(FAMILIES["spread"], 40)
    assert left_in(snapshot)
    plan = run_session(snapshot, POLICY, SessionContext()).plan
    assert LEFT not in plan.pending.values()
    assert not plan.certificate.limitations


def test_every_gang_gets_its_turn() -> None:
    snapshot = crowd(FAMILIES["spread"], 40)
    always = left_in(snapshot)
    for turn in range(40):
        always &= left_in(replace(snapshot, taken_ms=turn * TURN_MS))
    assert always == set()


def test_namespaces_take_turns() -> None:
    """A namespace with few costly gangs does not wait for a namespace with many."""
    many, few = crowd(FAMILIES["spread"], 60), crowd(FAMILIES["spread"], 2, "few")
    mine = [gang for gang in few.gangs if gang.namespace == "few"]
    gangs = tuple(sorted((*many.gangs, *mine), key=lambda gang: gang.key))
    for turn in range(3):
        left = left_in(replace(many, gangs=gangs, taken_ms=turn * TURN_MS))
        assert left
        assert not any(key.startswith("few/") for key in left)


def begun(snapshot: Snapshot, key: str) -> Snapshot:
    """Return the snapshot in which the pods of a gang are nominated."""
    gangs = [
        replace(g, tasks=tuple(replace(t, nominated_node="n1") for t in g.tasks))
        if g.key == key
        else g
        for g in snapshot.gangs
    ]
    return replace(snapshot, gangs=tuple(gangs))


def test_gangs_for_which_pods_were_evicted_come_first() -> None:
    snapshot = crowd(FAMILIES["spread"], 40)
    for key in left_in(snapshot):
        assert key not in left_in(begun(snapshot, key))


def test_gangs_that_have_begun_leave_other_namespaces_their_turns() -> None:
    many, few = crowd(FAMILIES["spread"], 60), crowd(FAMILIES["spread"], 2, "few")
    for gang in many.gangs:
        many = begun(many, gang.key)
    mine = [gang for gang in few.gangs if gang.namespace == "few"]
    gangs = tuple(sorted((*many.gangs, *mine), key=lambda gang: gang.key))
    for turn in range(3):
        left = left_in(replace(many, gangs=gangs, taken_ms=turn * TURN_MS))
        assert left
        assert not any(key.startswith("few/") for key in left)


def test_pods_of_one_shape_cost_as_much_as_one() -> None:
    assert left_in(crowd(lambda _: FAMILIES["affinity"](0), 50)) == set()


def test_usual_pods_are_always_considered() -> None:
    snapshot = crowd(lambda n: {"affinity": {"podAntiAffinity": {REQUIRED: terms(n, 3)}}}, 400)
    assert without_costly_gangs(snapshot) is snapshot


def test_a_gang_that_takes_too_long_alone_waits_and_says_why() -> None:
    pods = [
        pod(f"p{i:03d}", FAMILIES["anti-affinity"](i), annotations={GROUP: "g"}) for i in range(200)
    ]
    snapshot = assemble([node("n1"), group("g", {"minMember": 1}), *pods, pod("plain")]).snapshot
    report = run_session(snapshot, POLICY, SessionContext(period_ms=1000))
    assert set(report.plan.binds) == {"ns/plain"}
    told = str(report.plan.pending["ns/g"])
    assert told.startswith("InvalidPod: the affinity terms, spread constraints, volume claims, ")
    assert f"at most {MOST_OF_GANG} is accepted: use fewer" in told


def sized(number: int) -> dict[str, Any]:
    """Return a container that requests its own amount of CPU."""
    requests = {"cpu": f"{number + 1}m"}
    return {"containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}]}


def excess_of(snapshot: Snapshot, time_ms: int) -> set[str]:
    return {g.key for g in without_excess_gangs(snapshot, time_ms).gangs if g.problem == TOO_MANY}


def steps_of(snapshot: Snapshot) -> int:
    gangs = [gang for gang in snapshot.gangs if gang.problem is None]
    pods = [task for gang in gangs for task in gang.tasks]
    num_shapes = len({task.shape for task in pods})
    return len(gangs) * GANG_STEPS + len(pods) * POD_STEPS + num_shapes * SHAPE_STEPS


def test_a_session_considers_the_gangs_that_it_has_time_for() -> None:
    snapshot = crowd(sized, 400)
    for time_ms in (1, 10, 50):
        considered = without_excess_gangs(snapshot, time_ms)
        assert 0 < steps_of(considered) <= time_ms * STEPS_PER_MS
    enough_ms = -(-steps_of(snapshot) // STEPS_PER_MS)
    assert without_excess_gangs(snapshot, enough_ms) is snapshot
    assert excess_of(snapshot, enough_ms - 1)


def test_a_session_has_time_for_more_gangs_if_they_are_equal() -> None:
    considered = [401 - len(excess_of(crowd(spec, 400), 30)) for spec in (sized, lambda _: {})]
    assert considered[0] < considered[1] < 400


def test_every_gang_is_considered_within_some_turns_and_the_first_ones_always() -> None:
    snapshot = crowd(sized, 100)
    turns = [replace(snapshot, taken_ms=turn * NUMBER_TURN_MS) for turn in range(100)]
    excess = [excess_of(each, 5) for each in turns]
    assert set.intersection(*excess) == set()
    assert {"ns/pod:p000", "ns/pod:p001", "other/pod:plain"}.isdisjoint(set.union(*excess))


def test_the_gangs_of_the_highest_priority_are_always_considered() -> None:
    snapshot = crowd(sized, 100)
    urgent = [replace(g, priority=7) if g.key == "ns/pod:p077" else g for g in snapshot.gangs]
    for turn in range(20):
        taken_ms = turn * NUMBER_TURN_MS
        assert "ns/pod:p077" not in excess_of(
            replace(snapshot, gangs=tuple(urgent), taken_ms=taken_ms), 5
        )


def test_queues_of_a_namespace_are_considered_in_rotation() -> None:
    """A queue with two gangs does not wait for the 98 gangs of another queue."""
    snapshot = crowd(sized, 100)
    few = {"ns/pod:p098", "ns/pod:p099"}
    gangs = tuple(replace(g, queue="few") if g.key in few else g for g in snapshot.gangs)
    for turn in range(20):
        taken_ms = turn * NUMBER_TURN_MS
        assert few.isdisjoint(excess_of(replace(snapshot, gangs=gangs, taken_ms=taken_ms), 5))


def test_a_gang_that_takes_longer_than_a_session_is_considered_at_some_time() -> None:
    pods = [pod(f"g{i:03d}", sized(i), annotations={GROUP: "g"}) for i in range(100)]
    pods += [pod(f"p{i}", sized(200 + i)) for i in range(20)]
    snapshot = assemble([node("n1"), group("g", {"minMember": 1}), *pods]).snapshot
    turns = [replace(snapshot, taken_ms=turn * NUMBER_TURN_MS) for turn in range(50)]
    excess = [excess_of(each, 5) for each in turns]
    assert any("ns/g" in each for each in excess)
    assert not all("ns/g" in each for each in excess)


def test_excess_gangs_say_so_and_wait_for_a_later_session() -> None:
    snapshot = crowd(sized, 100)
    report = run_session(
        snapshot, POLICY, SessionContext(limits=Limits(budget_ms=None), period_ms=5)
    )
    left = excess_of(snapshot, 5)
    assert left
    plan = report.plan
    assert {key for key, reason in plan.pending.items() if reason == TOO_MANY} == left
    assert f"{len(left)} gangs left to a later session" in plan.certificate.limitations
    assert not plan.certificate.is_proved
    assert str(TOO_MANY).startswith("WaitsForItsTurn: more jobs are pending than a session")
    assert ask_again_ms(plan, 5) == NUMBER_TURN_MS
    whole = run_session(snapshot, POLICY, SessionContext()).plan
    assert TOO_MANY not in whole.pending.values()


def test_deferred_gangs_are_not_compiled_and_are_reported() -> None:
    snapshot = crowd(sized, 400)
    context = SessionContext(limits=Limits(budget_ms=None), period_ms=5)
    report = run_session(snapshot, POLICY, context)
    left = excess_of(snapshot, 5)
    compiled = {gang.key for gang in report.problem.snapshot.gangs}
    separated = {gang.key for gang in report.separated}
    assert compiled.isdisjoint(separated)
    assert compiled | separated == {gang.key for gang in snapshot.gangs}
    assert separated < left
    assert len(left - separated) == 1
    assert list(report.plan.pending) == sorted(report.plan.pending)
    assert left <= report.plan.pending.keys()
    waiting = figures_of(report, POLICY).pending
    assert sum(waiting.values()) == len(report.plan.pending)


def test_queues_demand_what_their_deferred_gangs_request() -> None:
    snapshot = crowd(sized, 400)
    queues = [
        run_session(
            snapshot, POLICY, SessionContext(limits=Limits(budget_ms=None), period_ms=period_ms)
        ).problem.queues.requested
        for period_ms in (5, 50, None)
    ]
    assert queues[0].any()
    assert queues[0].tolist() == queues[1].tolist() == queues[2].tolist()


@pytest.mark.parametrize("change", ["running", "nominated", "victim"])
def test_a_blocked_gang_that_holds_capacity_stays(change: str) -> None:
    snapshot = crowd(sized, 3)
    (first, *others) = snapshot.gangs
    (task,) = first.tasks
    changed = {
        "running": replace(task, status=TaskStatus.RUNNING, node="n1"),
        "nominated": replace(task, nominated_node="n1"),
        "victim": replace(task, is_victim=True),
    }[change]
    invalid = Reason(ReasonCode.INVALID_POD, "invalid")
    gangs = (replace(first, tasks=(changed,)), *others)
    blocked = replace(snapshot, gangs=tuple(replace(g, problem=invalid) for g in gangs))
    kept, separated = separate_blocked_gangs(blocked)
    assert [gang.key for gang in kept.gangs] == [first.key]
    assert [gang.key for gang in separated] == [gang.key for gang in others]


def test_gangs_without_a_problem_stay() -> None:
    snapshot = crowd(sized, 3)
    assert separate_blocked_gangs(snapshot) == (snapshot, ())


def enqueued(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with blocked and enqueued gangs that need 5 CPUs each."""
    gangs = (
        replace(g, problem=TOO_MANY, phase=GangPhase.INQUEUE, min_resources=(("cpu", 5),))
        for g in snapshot.gangs
    )
    return replace(snapshot, gangs=tuple(gangs))


def test_the_enqueue_limits_still_count_the_enqueued_gangs() -> None:
    snapshot = enqueued(crowd(sized, 30))
    kept, separated = separate_blocked_gangs(snapshot)
    assert len(kept.gangs) == 2  # One gang in each of the two namespaces.
    assert len(separated) == 29
    before, after = (
        sum(amount_of(gang.min_resources, "cpu") for gang in each.gangs)
        for each in (snapshot, kept)
    )
    assert before == after == 31 * 5


def test_the_enqueued_gangs_of_a_namespace_with_a_quota_stay() -> None:
    snapshot = enqueued(crowd(sized, 30))
    limited = replace(snapshot, quotas=(Quota("ns/quota", (("pods", 100),)),))
    kept, _ = separate_blocked_gangs(limited)
    assert sum(gang.namespace == "ns" for gang in kept.gangs) == 30


def test_no_gang_overtakes_a_deferred_gang_of_a_fifo_queue() -> None:
    snapshot = crowd(sized, 100)
    queues = tuple(replace(q, is_fifo=q.name == "default") for q in snapshot.queues)
    assert any(queue.is_fifo for queue in queues)
    for turn in range(5):
        at = replace(snapshot, queues=queues, taken_ms=turn * NUMBER_TURN_MS)
        kept, separated = defer_gangs(at, 5)
        line = sorted((*kept.gangs, *separated), key=lambda g: (-g.priority, g.created_ms, g.key))
        is_open = [gang.problem is None for gang in line]
        assert is_open == sorted(is_open, reverse=True)
        assert any(is_open)
        first = next(gang for gang in line if gang.problem)
        assert first.problem == TOO_MANY
        behind = f"WaitsForItsTurn: waits behind {first.key} in the fifo queue default"
        assert {str(g.problem) for g in line if g.problem} == {str(TOO_MANY), behind}


FULL = Reason(ReasonCode.RESOURCES, "no node has 4 CPUs")


@pytest.mark.parametrize("deferred", [TOO_MANY, LEFT], ids=["too many", "costly"])
def test_a_deferred_gang_keeps_its_reason_until_a_session_considers_it(deferred: Reason) -> None:
    first = keep_reasons({"ns/a": FULL, "ns/b": deferred}, {})
    assert first == {"ns/a": FULL, "ns/b": deferred}
    second = keep_reasons({"ns/a": deferred, "ns/b": FULL}, first)
    assert second == {"ns/a": FULL, "ns/b": FULL}
    better = Reason(ReasonCode.FRAGMENTED, "4 CPUs are on several nodes")
    assert keep_reasons({"ns/a": better, "ns/b": deferred}, second) == {
        "ns/a": better,
        "ns/b": FULL,
    }
    assert keep_reasons({"ns/b": deferred}, second) == {"ns/b": FULL}


def test_a_deferred_gang_keeps_no_reason_that_may_have_ended() -> None:
    """Pods that are still missing may have been created since."""
    missing = Reason(ReasonCode.NOT_ENOUGH_TASKS, "1 of 2 pods exist")
    assert keep_reasons({"ns/a": TOO_MANY}, {"ns/a": missing}) == {"ns/a": TOO_MANY}
