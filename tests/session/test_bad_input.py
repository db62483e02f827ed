"""Invalid objects end to end: each gets a diagnostic, and all others are placed as usual.

The cluster is full and its queues compete by weight, so that any side effect of an invalid object
would show.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import write_yaml
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy import PolicyError
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.formats.objects import (
    CSI,
    bound_claim,
    claiming,
    csi_node,
    device_claim,
    group,
    mounting,
    node,
    pod,
    queue,
    thing,
    volume,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Plan
    from optsched.formats.snapshots.instance_files import Instance

LIMITS = Limits(budget_ms=None, num_workers=1)


@cache
def policy():
    return load_policy("volcano-default", Path.read_text)


def gang(
    name: str, number: int, queue: str = "default", asks: Any = None, **spec: Any
) -> list[dict[str, Any]]:
    """Return a PodGroup and its pods, of one CPU each by default."""
    requests = {"cpu": "1"} if asks is None else asks
    containers = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    marked = {"annotations": {"scheduling.k8s.io/group-name": name}}
    pods = [pod(f"{name}-{i}", containers, **marked) for i in range(number)]
    return [group(name, {"minMember": 1, "queue": queue, **spec}), *pods]


GOOD = [
    *(node(f"n{i}") for i in range(3)),
    queue("a", weight=1),
    queue("b", weight=2),
    *gang("ga", 20, "a"),
    *gang("gb", 20, "b"),
]
"""24 CPUs for 40 pods: a deserves 8, b 16."""


def decide(
    folder: Path, *objects: Any, raw: Sequence[tuple[str, bytes]] = ()
) -> tuple[Instance, Plan]:
    """Return the instance and the plan for the valid objects and others, read from files."""
    (folder / "good.yaml").write_text("".join(f"---\n{write_yaml(o)}" for o in GOOD))
    if objects:
        (folder / "more.yaml").write_text("".join(f"---\n{write_yaml(o)}" for o in objects))
    for name, content in raw:
        (folder / name).write_bytes(content)
    found = read_instance(folder)
    report = run_session(
        found.snapshot, policy(), SessionContext(solver=InProcess(), limits=LIMITS)
    )
    assert report.trace.violations == ()
    return found, report.plan


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return the plan for a cluster of only the valid objects."""
    found, plan = decide(tmp_path_factory.mktemp("good"))
    assert found.problems == found.notices == ()
    counts = [sum(task.startswith(f"ns/{name}-") for task in plan.binds) for name in ("ga", "gb")]
    assert counts == [8, 16]
    return plan


def assert_as_usual(plan: Plan, usual: Plan) -> None:
    assert plan.binds == usual.binds
    codes = {key: plan.pending[key].code for key in usual.pending}
    # The messages about missing resources also count broken nodes.
    assert codes == {key: reason.code for key, reason in usual.pending.items()}


def waiting(plan: Plan, usual: Plan) -> dict[str, str]:
    """Return the reasons of the gangs that wait in addition to the usual ones."""
    return {
        k.removeprefix("ns/"): str(v) for k, v in plan.pending.items() if k not in usual.pending
    }


# --- amounts -------------------------------------------------------------------------------------

FIELD = "spec.containers[0].resources.requests"
NO_QUANTITY = (
    "is not a quantity: write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3"
)
TOO_LARGE = "is above the largest amount that can be counted, 9223372036854775807 milli-CPU"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("NaN", NO_QUANTITY),
        ("1_000", NO_QUANTITY),
        ("", NO_QUANTITY),
        ("one", NO_QUANTITY),
        ("0x10", NO_QUANTITY),
        ("1 ", NO_QUANTITY),
        (True, NO_QUANTITY),
        (["1"], NO_QUANTITY),
        ("-1", "is negative: write an amount of zero or more"),
        (-0.5, "is negative: write an amount of zero or more"),
        ("1E", TOO_LARGE),
        ("1e400", TOO_LARGE),
        ("9999999999999999999", TOO_LARGE),
    ],
    ids=str,
)
def test_cpus_that_nobody_can_count(tmp_path: Path, usual: Plan, value: Any, message: str) -> None:
    found, plan = decide(tmp_path, *gang("bad", 1, "a", {"cpu": value}))
    fault = f"{FIELD}[cpu]: {json.dumps(value)} {message}"
    line = found.problems[0].where
    assert [str(p) for p in found.problems] == [f"{line}: Pod ns/bad-0: {fault}"]
    assert line.startswith("more.yaml:")
    assert waiting(plan, usual) == {"bad": f"InvalidPod: pod ns/bad-0: {fault}"}
    assert_as_usual(plan, usual)


@pytest.mark.parametrize("number", [1, 2, 20])
def test_more_memory_than_any_machine_has(tmp_path: Path, usual: Plan, number: int) -> None:
    # 1E is a valid quantity, but the sum of ten exceeds 64 bits.
    found, plan = decide(tmp_path, *gang("bad", number, "a", {"memory": "1E"}, minMember=number))
    fault = "1000000000000000000 is more than any node has: request at most 4503599627370496 in all"
    assert len(found.problems) == number
    assert all(p.message in fault and p.key.startswith("ns/bad-") for p in found.problems)
    assert fault in waiting(plan, usual)["bad"]
    assert_as_usual(plan, usual)


@pytest.mark.parametrize("amount", ["4Pi", "100Ti"])
def test_more_memory_than_these_machines_have(tmp_path: Path, usual: Plan, amount: str) -> None:
    found, plan = decide(tmp_path, *gang("bad", 3, "default", {"memory": amount}))
    assert found.problems == ()
    assert waiting(plan, usual)["bad"].startswith("Impossible: 1 pod with ")
    assert_as_usual(plan, usual)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_node_that_offers_more_than_any_machine_has(
    tmp_path: Path, usual: Plan, resource: str
) -> None:
    odd = node("odd")
    odd["status"]["allocatable"] = {resource: "4000P", "pods": "10"}
    found, plan = decide(tmp_path, odd)
    (problem,) = found.problems
    assert (problem.kind, problem.key) == ("Node", "odd")
    assert problem.path == f"status.allocatable[{resource}]"
    assert_as_usual(plan, usual)


@pytest.mark.parametrize("field", ["minResources", "minTaskMember"])
@pytest.mark.parametrize("value", ["NaN", "-1"])
def test_minimums_that_nobody_can_count(
    tmp_path: Path, usual: Plan, field: str, value: str
) -> None:
    found, plan = decide(tmp_path, *gang("bad", 3, "a", **{field: {"cpu": value}}))
    (problem,) = found.problems
    assert (problem.kind, problem.key, problem.path) == ("PodGroup", "ns/bad", f"spec.{field}[cpu]")
    assert waiting(plan, usual)["bad"].startswith(f"InvalidPodGroup: PodGroup ns/bad: spec.{field}")
    assert_as_usual(plan, usual)


@pytest.mark.parametrize("amount", ["8E", "4E"])
def test_minimums_that_no_cluster_has(tmp_path: Path, usual: Plan, amount: str) -> None:
    gangs = [o for i in range(3) for o in gang(f"bad{i}", 1, "a", minResources={"memory": amount})]
    _, plan = decide(tmp_path, *gangs)
    reasons = waiting(plan, usual)
    assert reasons.keys() == {"bad0", "bad1", "bad2"}
    assert all(r.startswith("Impossible: minResources") for r in reasons.values())
    assert_as_usual(plan, usual)


# --- gangs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "-1 is out of range: write 0 to 2147483647"),
        (10**12, "1000000000000 is out of range: write 0 to 2147483647"),
        ("3", '"3" is not a whole number'),
        (3.5, "3.5 is not a whole number"),
        ([], "[] is not a whole number"),
    ],
    ids=str,
)
def test_a_min_member_that_is_no_number(
    tmp_path: Path, usual: Plan, value: Any, message: str
) -> None:
    found, plan = decide(tmp_path, *gang("bad", 3, "default", minMember=value))
    assert [p.key for p in found.problems] == ["ns/bad"]
    fault = f"PodGroup ns/bad: spec.minMember: {message}"
    assert str(found.problems[0]).endswith(fault)
    assert waiting(plan, usual) == {"bad": f"InvalidPodGroup: {fault}"}
    assert_as_usual(plan, usual)


def test_more_members_than_pods(tmp_path: Path, usual: Plan) -> None:
    found, plan = decide(tmp_path, *gang("bad", 3, "a", minMember=5))
    assert found.problems == ()
    assert waiting(plan, usual) == {"bad": "NotEnoughTasks: minMember is 5, but only 3 pods exist"}
    assert_as_usual(plan, usual)


def test_pods_that_name_a_pod_group_that_is_not_there(tmp_path: Path, usual: Plan) -> None:
    _, plan = decide(tmp_path, *gang("bad", 3)[1:])
    assert waiting(plan, usual) == {
        "bad": "PodGroupNotFound: PodGroup ns/bad, which pod ns/bad-0 names, does not exist"
    }
    assert_as_usual(plan, usual)


def test_one_unreadable_pod_of_a_gang_that_can_do_without(tmp_path: Path, usual: Plan) -> None:
    objects = gang("bad", 2, "default")
    objects[2]["spec"]["priority"] = "high"
    found, plan = decide(tmp_path, *objects)
    assert [(p.key, p.path) for p in found.problems] == [("ns/bad-1", "spec.priority")]
    assert "ns/bad-0" in plan.binds
    assert "ns/bad-1" not in plan.binds


# --- queues --------------------------------------------------------------------------------------

CLOSED = {**queue("q"), "status": {"state": "Closed"}}


@pytest.mark.parametrize(
    ("queues", "reason", "problem"),
    [
        ([], "QueueNotFound: queue q does not exist", None),
        ([CLOSED], "QueueNotOpen: queue q is Closed; only an Open queue takes new work", None),
        (
            [queue("q", parent="gone")],
            "QueueNotFound: queue q: its parent gone does not exist",
            None,
        ),
        (
            [queue("q", parent="r"), queue("r", parent="q")],
            "InvalidQueue: queue q is its own ancestor: its parents form a cycle",
            None,
        ),
        (
            [queue("q", parent="r"), queue("r", parent="s"), queue("s", parent="r")],
            "InvalidQueue: queue q: its ancestor queue r is its own ancestor: "
            "its parents form a cycle",
            None,
        ),
        ([queue("q", parent="q")], "InvalidQueue: queue q is its own ancestor: ", None),
        (
            [queue("q", weight=-1)],
            "InvalidQueue: queue q: spec.weight: -1 is out of range: write 1 to 65535",
            "spec.weight",
        ),
        (
            [queue("q", weight="heavy")],
            'InvalidQueue: queue q: spec.weight: "heavy" is not a whole number',
            "spec.weight",
        ),
        (
            [queue("q", capability={"cpu": "NaN"})],
            f'InvalidQueue: queue q: spec.capability[cpu]: "NaN" {NO_QUANTITY}',
            "spec.capability[cpu]",
        ),
        (
            [queue("q", guarantee={"resource": {"cpu": "1E"}})],
            f'InvalidQueue: queue q: spec.guarantee.resource[cpu]: "1E" {TOO_LARGE}',
            "spec.guarantee.resource[cpu]",
        ),
    ],
    ids=[
        *("missing", "closed", "no parent", "cycle", "below a cycle", "own parent"),
        *("negative weight", "weight in words", "no quantity", "absurd guarantee"),
    ],
)
def test_queues_that_take_no_work(
    tmp_path: Path, usual: Plan, queues: list[Any], reason: str, problem: str | None
) -> None:
    found, plan = decide(tmp_path, *queues, *gang("bad", 9, "q"))
    assert [(p.key, p.path) for p in found.problems] == ([("q", problem)] if problem else [])
    assert waiting(plan, usual)["bad"].startswith(reason)
    assert_as_usual(plan, usual)


# --- pods ----------------------------------------------------------------------------------------

IN_SPACE = {"key": "zone", "operator": "Inside", "values": ["a"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"tolerations": [{"key": "a", "operator": "Maybe"}]}, "spec.tolerations[0].operator"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [IN_SPACE]}]}
                    }
                }
            },
            f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0]"
            ".operator",
        ),
        ({"nodeSelector": {"zone": 1}}, "spec.nodeSelector[zone]"),
        ({"containers": "none"}, "spec.containers"),
        ({"priority": 10**12}, "spec.priority"),
        (
            {
                "topologySpreadConstraints": [
                    {"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
            "spec.topologySpreadConstraints[0].maxSkew",
        ),
    ],
    ids=["toleration", "affinity", "selector", "containers", "priority", "spread"],
)
def test_pods_with_a_field_that_makes_no_sense(
    tmp_path: Path, usual: Plan, spec: dict[str, Any], path: str
) -> None:
    found, plan = decide(tmp_path, pod("bad", spec))
    assert [(p.kind, p.key, p.path) for p in found.problems] == [("Pod", "ns/bad", path)]
    told = waiting(plan, usual)["pod:bad"]
    assert told.startswith(f"InvalidPod: pod ns/bad: {path}: ")
    assert found.problems[0].message in told
    assert_as_usual(plan, usual)


def test_a_claim_that_is_not_there(tmp_path: Path, usual: Plan) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    nothing = {"containers": [{"name": "c"}], "volumes": volumes}
    _, plan = decide(tmp_path, pod("bad", nothing))
    assert waiting(plan, usual) == {
        "pod:bad": "VolumeUnavailable: persistent volume claim ns/data does not exist"
    }
    assert_as_usual(plan, usual)


@pytest.mark.parametrize(
    ("count", "message"),
    [("many", "is not a whole number"), (-1, "is out of range: write 0 to 2147483647")],
)
def test_a_limit_of_volumes_that_is_no_number(
    tmp_path: Path, usual: Plan, count: Any, message: str
) -> None:
    names = [f"n{i}" for i in range(3)]
    limits = [csi_node(name, csi=count) for name in names]
    claimed = {"containers": [{"name": "c"}], **mounting("data")}
    objects = [*limits, pod("bad", claimed), volume("data"), bound_claim("data")]
    found, plan = decide(tmp_path, *objects)
    path = "spec.drivers[0].allocatable.count"
    assert [(p.kind, p.key, p.path) for p in found.problems] == [
        ("CSINode", name, path) for name in names
    ]
    assert all(p.message.endswith(message) for p in found.problems)
    told = waiting(plan, usual)["pod:bad"]
    assert f"cannot attach 1 more volume of driver {CSI} (limit 0)" in told
    assert_as_usual(plan, usual)


# --- files and documents -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("bad.yaml", b"kind: Pod\nmetadata: {name: [\n", "bad.yaml:"),
        ("bad.yaml", b"a: 1\n\tb: 2\n", "bad.yaml:"),
        ("bad.json", b'{"kind": "Pod",', "bad.json:"),
        ("bad.yaml", b"kind: \xff\xfe\n", "bad.yaml"),
        (
            "bad.yaml",
            b"just a text\n",
            "is not a Kubernetes object: write apiVersion, kind and metadata",
        ),
        (
            "bad.yaml",
            b"- 1\n- 2\n",
            "is not a Kubernetes object: write apiVersion, kind and metadata",
        ),
        (
            "bad.yaml",
            b"kind: Pod\n",
            "is not a Kubernetes object: write apiVersion, kind and metadata",
        ),
        (
            "bad.yaml",
            b"apiVersion: v1\nkind: Pod\nmetadata: {}\n",
            "metadata.name is missing: every object needs a name",
        ),
        ("bad.yaml", b"apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n", "metadata.name: 7"),
    ],
    ids=[
        *("open bracket", "tab", "half json", "no utf-8", "text", "list", "no version"),
        *("no name", "a number for a name"),
    ],
)
def test_files_that_are_no_manifests(
    tmp_path: Path, usual: Plan, name: str, content: bytes, told: str
) -> None:
    found, plan = decide(tmp_path, raw=[(name, content)])
    assert len(found.problems) >= 1
    assert told in str(found.problems[0])
    assert name in str(found.problems[0])
    assert waiting(plan, usual) == {}
    assert_as_usual(plan, usual)


def test_a_field_that_the_kind_does_not_have(tmp_path: Path, usual: Plan) -> None:
    found, plan = decide(tmp_path, *gang("odd", 2, "missing", minMembers=2))
    (problem,) = found.problems
    assert (problem.key, problem.path) == ("ns/odd", "spec.minMembers")
    assert "minMember" in problem.message
    assert_as_usual(plan, usual)


def test_an_object_that_is_there_twice(tmp_path: Path, usual: Plan) -> None:
    found, plan = decide(tmp_path, queue("a", weight=1))
    assert [str(p) for p in found.problems] == [
        "more.yaml:2: Queue a: occurs more than once; the last occurrence applies"
    ]
    # The gang is as old as the last one, so that the queues alternate in another order.
    assert plan.binds.keys() == usual.binds.keys()


def test_kinds_that_nobody_schedules_are_left_out(tmp_path: Path, usual: Plan) -> None:
    found, plan = decide(tmp_path, thing("v1", "ConfigMap", "c", "ns"))
    assert found.problems == ()
    (left_out,) = found.left_out
    assert "ConfigMap c is ignored: no scheduler reads this kind" in left_out
    assert_as_usual(plan, usual)


# --- everything at once --------------------------------------------------------------------------


def test_all_of_it_together(tmp_path: Path, usual: Plan) -> None:
    objects = [
        *gang("nan", 1, "a", {"cpu": "NaN"}),
        *gang("huge", 20, "a", {"memory": "1E"}, minMember=20),
        *gang("few", 3, "a", minMember=5),
        *gang("nowhere", 9, "gone"),
        queue("loop", parent="pool"),
        queue("pool", parent="loop"),
        *gang("round", 9, "loop"),
        *gang("orphans", 3)[1:],
        pod("odd", {"nodeSelector": {"zone": 1}}),
    ]
    found, plan = decide(tmp_path, *objects, raw=[("bad.yaml", b"kind: [\n")])
    assert waiting(plan, usual).keys() == {
        *("nan", "huge", "few", "nowhere", "round", "orphans", "pod:odd")
    }
    assert len(found.problems) == 1 + 20 + 1 + 1
    assert_as_usual(plan, usual)


# --- clusters without anything -------------------------------------------------------------------


def test_no_nodes(tmp_path: Path) -> None:
    objects = [queue("a"), *gang("g", 2, "a")]
    (tmp_path / "a.yaml").write_text("".join(f"---\n{write_yaml(o)}" for o in objects))
    found = read_instance(tmp_path)
    plan = run_session(
        found.snapshot, policy(), SessionContext(solver=InProcess(), limits=LIMITS)
    ).plan
    assert plan.binds == {}
    assert {k: str(v) for k, v in plan.pending.items()} == {
        "ns/g": "NoNodes: the cluster has no nodes"
    }


def test_no_objects(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("---\n")
    with pytest.raises(InstanceError, match="nothing to schedule: looked for Node, Pod"):
        read_instance(tmp_path)


def test_no_pods(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(write_yaml(node()))
    found = read_instance(tmp_path)
    plan = run_session(
        found.snapshot, policy(), SessionContext(solver=InProcess(), limits=LIMITS)
    ).plan
    assert (plan.actions, plan.pending) == ((), {})


# --- policies ------------------------------------------------------------------------------------

MODEL = """\
apiVersion: optsched.io/v1alpha1
kind: Model
name: lab
actions: [enqueue, allocate]
tiers:
- rules:
  - name: gang
  - name: binpack
    arguments: {binpack.wieght: 2}
levels: [admission]
solvr: {engine: none}
period: soon
"""


def test_a_policy_tells_of_every_mistake_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(MODEL)
    with pytest.raises(PolicyError) as caught:
        load_policy(str(path), Path.read_text)
    told = str(caught.value)
    for line, field, likely in ((9, "binpack.wieght", "binpack.weight"), (11, "solvr", "solver")):
        assert f"lab.yaml:{line}:" in told
        assert field in told
        assert likely in told
    assert "lab.yaml:12:" in told
    assert "a duration" in told or "soon" in told


def test_a_policy_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="volcano-default"):
        load_policy(str(tmp_path / "volcano-defualt"), Path.read_text)


# --- devices -------------------------------------------------------------------------------------


def claims_of(name: str, claim: str) -> list[dict[str, Any]]:
    """Return a PodGroup and its pod, which names a claim."""
    made, only = gang(name, 1, "a")
    return [made, {**only, "spec": {**only["spec"], **claiming(claim)}}]


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (None, "resource claim ns/c does not exist"),
        (device_claim("c", exactly={"count": -1}), "is out of range: write 1 to 2147483647"),
        (device_claim("c", exactly={"deviceClassName": "gone"}), "class gone does not exist"),
        ({**device_claim("c"), "spec": []}, "is not a mapping of field names to values"),
        (device_claim("c", status={"allocation": 3}), "is not a mapping of field names to values"),
        (device_claim("c", exactly={"selectors": 3}), "is not a list"),
    ],
)
def test_claims_that_nobody_can_use(
    tmp_path: Path, usual: Plan, claim: dict[str, Any] | None, why: str
) -> None:
    found, plan = decide(tmp_path, *claims_of("bad", "c"), *([claim] if claim else []))
    (told,) = waiting(plan, usual).values()
    assert told.startswith("DevicesUnavailable: resource claim ns/c")
    assert why in told
    assert claim is None or "gone" in why or why in str(found.problems[0])
    assert_as_usual(plan, usual)


@pytest.mark.parametrize(
    "spec",
    [
        3,
        {"driver": "d", "pool": {"name": "p"}, "nodeName": "n0", "devices": [{"name": 3}]},
        {"driver": "d", "pool": {"name": "p", "generation": "x"}, "nodeName": "n0"},
        {"driver": "d", "pool": {"name": "p"}, "nodeName": "n0", "devices": 3},
    ],
)
def test_slices_that_nobody_can_read(tmp_path: Path, usual: Plan, spec: object) -> None:
    bad = thing("resource.k8s.io/v1", "ResourceSlice", "s", spec=spec)
    found, plan = decide(tmp_path, bad)
    assert any("ResourceSlice s" in str(problem) for problem in found.problems)
    assert_as_usual(plan, usual)
