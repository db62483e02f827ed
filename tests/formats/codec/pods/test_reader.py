from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    TaintEffect,
    Toleration,
)
from optsched.cluster.task import (
    DeviceRequest,
    HostPort,
    PodTerm,
    QueueGate,
    SpreadTerm,
    Task,
    TaskShape,
    TaskStatus,
)
from optsched.formats.codec.pod_limits import Priorities
from optsched.formats.codec.pods.reader import (
    BarePodRules,
    DecodeOptions,
    PodDecoder,
    has_left_cluster,
    scheduler_of,
)
from tests.formats.objects import pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
GROUP = "scheduling.k8s.io/group-name"


def task(made: Any, decoder: PodDecoder | None = None) -> Task:
    return (decoder or PodDecoder()).task(made)


def shape(spec: Any, **more: Any) -> TaskShape:
    found = task(pod(spec=spec, **more))
    assert found.problem is None
    return found.shape


def told(made: Any) -> str:
    problem = task(made).problem
    assert problem is not None
    assert problem.code is ReasonCode.INVALID_POD
    return problem.message


# --- identity ------------------------------------------------------------------------------------


def test_pods_without_a_group_wait_for_the_one_that_is_made_for_them():
    decoder = PodDecoder(DecodeOptions(bare_pods=BarePodRules.WAIT))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u1"}
    owned = pod("a", uid="u", ownerReferences=[{**owner, "controller": True}])
    assert task(owned, decoder).gang == "ns/podgroup-u1"
    assert task(pod("a", uid="u", ownerReferences=[owner]), decoder).gang == "ns/podgroup-u"
    assert task(pod("a", uid="u"), decoder).gang == "ns/podgroup-u"
    assert task(pod("a", uid="u", annotations={GROUP: "g"}), decoder).gang == "ns/g"
    assert task(owned).gang == "ns/pod:a"


def test_a_pod_of_a_group():
    made = pod(
        "job-worker-12",
        spec={"priority": 7},
        status={"nominatedNodeName": "n2"},
        uid="u",
        labels={"app": "x"},
        annotations={GROUP: "g", "volcano.sh/task-spec": "worker"},
        creationTimestamp="1970-01-01T00:00:05Z",
    )
    assert task(made) == Task(
        key="ns/job-worker-12",
        shape=TaskShape((("cpu", 1000),)),
        status=TaskStatus.PENDING,
        uid="u",
        gang="ns/g",
        role="worker",
        index=12,
        priority=7,
        created_ms=5000,
        labels={"app": "x"},
        nominated_node="n2",
    )


@pytest.mark.parametrize(
    ("annotations", "scheduler", "gang"),
    [
        ({GROUP: "g"}, "volcano", "ns/g"),
        ({"scheduling.volcano.sh/group-name": "h"}, "volcano", "ns/h"),
        ({GROUP: ""}, "volcano", "ns/pod:p"),
        ({}, "volcano", "ns/pod:p"),
        ({}, "other", ""),
        ({GROUP: "g"}, "other", ""),
        ({GROUP: "g"}, None, ""),
    ],
)
def test_the_gang_of_a_pod(annotations: Any, scheduler: Any, gang: str):
    made = pod(spec={"schedulerName": scheduler}, annotations=annotations)
    assert task(made).gang == gang


def test_our_scheduler_may_have_several_names():
    decoder = PodDecoder(DecodeOptions(scheduler_names=("volcano", "optsched")))
    assert task(pod(spec={"schedulerName": "optsched"}), decoder).gang == "ns/pod:p"
    assert scheduler_of(pod(spec={"schedulerName": "optsched"})) == "optsched"
    assert scheduler_of({}) == "default-scheduler"


@pytest.mark.parametrize(
    ("name", "marks", "index"),
    [
        ("job-worker-12", {}, 12),
        ("job-worker-12", {"labels": {"volcano.sh/task-index": "3"}}, 3),
        ("w", {"annotations": {"volcano.sh/task-index": "4"}}, 4),
        ("w-1", {"annotations": {"volcano.sh/task-index": "-1"}}, -1),
        ("job-x7f2", {}, -1),
        ("job-99999999999999999999", {}, -1),
    ],
)
def test_the_index_of_a_pod(name: str, marks: Any, index: int):
    assert task(pod(name, **marks)).index == index


def test_the_role_of_a_pod_may_be_a_label():
    assert task(pod(labels={"volcano.sh/task-spec": "ps"})).role == "ps"


@pytest.mark.parametrize(
    ("spec", "annotations", "priority"),
    [
        ({}, {}, 3),
        ({"priorityClassName": "high"}, {}, 100),
        ({"priorityClassName": "high", "priority": 5}, {}, 5),
        ({"priority": 5}, {"volcano.sh/task-priority": "-2"}, -2),
        ({"priorityClassName": "system-node-critical"}, {}, 2000001000),
    ],
)
def test_the_priority_of_a_pod(spec: Any, annotations: Any, priority: int):
    table = Priorities({"high": 100, "system-node-critical": 2000001000}, default=3)
    made = pod(spec=spec, annotations=annotations)
    assert task(made, PodDecoder(priorities=table)).priority == priority


@pytest.mark.parametrize(
    ("spec", "preempts"),
    [
        ({}, True),
        ({"priorityClassName": "never"}, False),
        ({"priorityClassName": "never", "priority": 5}, False),
        ({"priorityClassName": "never", "preemptionPolicy": "PreemptLowerPriority"}, True),
        ({"preemptionPolicy": "Never"}, False),
    ],
)
def test_a_pod_without_a_policy_has_that_of_its_class(spec: Any, preempts: bool):
    table = Priorities({"never": 100}, never_preempting=frozenset({"never"}))
    assert task(pod(spec=spec), PodDecoder(priorities=table)).shape.preempts is preempts


def test_a_missing_priority_class_is_only_remarked():
    found, remarks = PodDecoder().read(pod(spec={"priorityClassName": "gone"}))
    assert (found.priority, found.problem) == (0, None)
    assert [r.path for r in remarks] == ["spec.priorityClassName"]


def test_task_priority_orders_tasks_but_not_gangs():
    made = pod(spec={"priority": 5}, annotations={"volcano.sh/task-priority": "9"})
    decoder = PodDecoder()
    assert decoder.task(made).priority == 9
    assert decoder.gang_priority(made) == 5


@pytest.mark.parametrize(
    ("annotations", "namespace", "queue"),
    [
        ({"scheduling.volcano.sh/queue-name": "a"}, {"scheduling.volcano.sh/queue-name": "b"}, "a"),
        ({}, {"scheduling.volcano.sh/queue-name": "b"}, "b"),
        ({}, {}, "spare"),
    ],
)
def test_the_queue_of_a_pod_without_a_group(annotations: Any, namespace: Any, queue: str):
    decoder = PodDecoder(DecodeOptions(default_queue="spare"))
    assert decoder.queue(pod(annotations=annotations), namespace) == queue


# --- status --------------------------------------------------------------------------------------

GONE = "2026-01-01T00:00:00Z"
GATE = {"name": "scheduling.volcano.sh/queue-allocation-gate"}


@pytest.mark.parametrize(
    ("asks", "gates", "node", "status", "gate"),
    [
        ("true", [GATE], "", TaskStatus.PENDING, QueueGate.CLOSED),
        ("true", [], "", TaskStatus.PENDING, QueueGate.OPEN),
        ("true", [], "n1", TaskStatus.BOUND, QueueGate.NONE),
        ("true", [GATE, {"name": "x"}], "", TaskStatus.GATED, QueueGate.NONE),
        ("true", [{"name": "x"}], "", TaskStatus.GATED, QueueGate.NONE),
        ("false", [GATE], "", TaskStatus.GATED, QueueGate.NONE),
        ("false", [], "", TaskStatus.PENDING, QueueGate.NONE),
    ],
)
def test_a_gate_is_ours_where_the_pod_has_asked_for_it(
    asks: str, gates: Any, node: str, status: TaskStatus, gate: QueueGate
):
    spec = {"schedulingGates": gates, **({"nodeName": node} if node else {})}
    made = PodDecoder().task(pod(spec=spec, annotations={GATE["name"]: asks}))
    assert (made.status, made.gate) == (status, gate)


@pytest.mark.parametrize(
    ("phase", "node", "deleted", "gates", "status", "gone"),
    [
        ("Pending", "", None, [], TaskStatus.PENDING, False),
        ("Pending", "", None, [{"name": "x"}], TaskStatus.GATED, False),
        ("Pending", "n1", None, [], TaskStatus.BOUND, False),
        ("Running", "n1", None, [], TaskStatus.RUNNING, False),
        ("Unknown", "n1", None, [], TaskStatus.BOUND, False),
        ("Running", "n1", GONE, [], TaskStatus.RELEASING, False),
        ("Pending", "n1", GONE, [], TaskStatus.RELEASING, False),
        ("Pending", "", GONE, [], TaskStatus.RELEASING, True),
        ("Succeeded", "n1", None, [], TaskStatus.SUCCEEDED, False),
        ("Failed", "n1", None, [], TaskStatus.FAILED, False),
        ("Failed", "n1", GONE, [], TaskStatus.FAILED, True),
    ],
)
def test_the_status_of_a_pod(
    phase: str, node: str, deleted: Any, gates: Any, status: TaskStatus, gone: bool
):
    made = pod(
        spec={"nodeName": node or None, "schedulingGates": gates},
        status={"phase": phase},
        deletionTimestamp=deleted,
    )
    assert task(made).status is status
    assert task(made).node == node
    assert has_left_cluster(made) is gone


# --- shape ---------------------------------------------------------------------------------------


def test_nodes_that_a_pod_asks_for():
    exists = {"key": "gpu", "operator": "Exists"}
    not_old = {"key": "gen", "operator": "NotIn", "values": ["1", "2"]}
    above = {"key": "cores", "operator": "Gt", "values": ["-4"]}
    named = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    found = shape(
        {
            "nodeSelector": {"zone": "b", "arch": "amd64"},
            "affinity": {
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [exists, not_old]},
                            {"matchFields": [named]},
                        ]
                    },
                    PREFERRED: [{"weight": 10, "preference": {"matchExpressions": [above]}}],
                }
            },
        }
    )
    assert found.node_selector == (("arch", "amd64"), ("zone", "b"))
    assert found.node_affinity == NodeSelector(
        (
            NodeTerm(
                (
                    Requirement("gpu", Operator.EXISTS),
                    Requirement("gen", Operator.NOT_IN, ("1", "2")),
                )
            ),
            NodeTerm(names=(Requirement("metadata.name", Operator.IN, ("n1",)),)),
        )
    )
    preferred = NodeTerm((Requirement("cores", Operator.GT, ("-4",)),))
    assert found.preferred_nodes == ((10, preferred),)


def test_required_affinity_without_terms_selects_no_node():
    found = shape({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}})
    assert found.node_affinity == NodeSelector(())
    assert not found.node_affinity.matches("n1", {})


def test_tolerations():
    found = shape(
        {
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a", "value": "1", "effect": "NoSchedule"},
                {"key": "b", "operator": "Exists", "tolerationSeconds": 300, "effect": None},
            ]
        }
    )
    assert found.tolerations == (
        Toleration(exists=True),
        Toleration("a", value="1", effect=TaintEffect.NO_SCHEDULE),
        Toleration("b", exists=True),
    )


def term(**more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone", **more}


APP = Requirement("app", Operator.IN, ("x",))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, PodTerm(LabelSelector((APP,)), ("ns",), None, "zone")),
        ({"namespaces": ["b", "a", "b"]}, PodTerm(LabelSelector((APP,)), ("a", "b"), None, "zone")),
        ({"namespaceSelector": {}}, PodTerm(LabelSelector((APP,)), (), LabelSelector(), "zone")),
        ({"labelSelector": None}, PodTerm(None, ("ns",), None, "zone")),
        ({"labelSelector": {}}, PodTerm(LabelSelector(), ("ns",), None, "zone")),
        (
            {"matchLabelKeys": ["rev", "none"], "mismatchLabelKeys": ["team"]},
            PodTerm(
                LabelSelector(
                    (
                        APP,
                        Requirement("rev", Operator.IN, ("7",)),
                        Requirement("team", Operator.NOT_IN, ("t",)),
                    )
                ),
                ("ns",),
                None,
                "zone",
            ),
        ),
        (
            {"labelSelector": None, "matchLabelKeys": ["rev"]},
            PodTerm(None, ("ns",), None, "zone"),
        ),
    ],
)
def test_relations_to_other_pods(more: Any, expected: PodTerm):
    wanted = {
        "podAffinity": {REQUIRED: [term(**more)]},
        "podAntiAffinity": {
            REQUIRED: [term(**more)],
            PREFERRED: [{"weight": 3, "podAffinityTerm": term(**more)}],
        },
    }
    found = shape({"affinity": wanted}, labels={"rev": "7", "team": "t"})
    assert found.pod_affinity == found.pod_anti_affinity == (expected,)
    assert found.preferred_pods == ((-3, expected),)


def test_label_keys_that_a_server_has_merged_are_not_added_twice():
    merged = {"matchExpressions": [{"key": "rev", "operator": "In", "values": ["7"]}]}
    wanted = term(labelSelector=merged, matchLabelKeys=["rev"])
    found = shape({"affinity": {"podAffinity": {REQUIRED: [wanted]}}}, labels={"rev": "7"})
    rev = Requirement("rev", Operator.IN, ("7",))
    assert found.pod_affinity[0].selector == LabelSelector((rev,))


def test_topology_spread():
    plain = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    full = {
        **plain,
        "maxSkew": 2,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "x"}},
        "matchLabelKeys": ["rev"],
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
    }
    found = shape({"topologySpreadConstraints": [plain, full]}, labels={"rev": "7"})
    own = LabelSelector((APP, Requirement("rev", Operator.IN, ("7",))))
    assert found.spread == (
        SpreadTerm(1, "zone", None, "ns"),
        SpreadTerm(2, "zone", own, "ns", False, 3, False, True),
    )


def test_host_ports_of_containers_and_sidecars():
    ports = [{"containerPort": 80}, {"containerPort": 1, "hostPort": 443, "protocol": "UDP"}]
    local = [{"containerPort": 9, "hostPort": 9, "hostIP": "127.0.0.1"}]
    spec = {
        "containers": [{"ports": ports}, {"ports": ports}],
        "initContainers": [
            {"ports": local, "restartPolicy": "Always"},
            {"ports": [{"containerPort": 2, "hostPort": 2}]},
        ],
    }
    kept = HostPort("TCP", "127.0.0.1", 9), HostPort("UDP", "0.0.0.0", 443)
    assert shape(spec).host_ports == kept
    everywhere = HostPort("TCP", "0.0.0.0", 80)
    assert shape({**spec, "hostNetwork": True}).host_ports == (everywhere, *kept)


def test_claims():
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "z"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "c", "emptyDir": {"medium": "Memory"}},
        {"name": "d", "configMap": {"name": "x"}},
    ]
    assert shape({"volumes": volumes}).claims == ("ns/data", "ns/p-scratch", "ns/z")


def test_a_marked_request_for_devices():
    marked = pod(annotations={"optsched.io/device": "1 460 A10|T4"})
    assert task(marked).shape.device == DeviceRequest(1, 460, ("A10", "T4"))
    assert task(pod()).shape.device is None


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"containers": [{"resources": {"requests": {"cpu": "two"}}}]},
            'spec.containers[0].resources.requests[cpu]: "two" is not a quantity: write a number '
            "with an optional suffix, such as 500m, 2, 1.5Gi or 1e3",
        ),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector[a]: 1 is not a string: write it in quotes"),
        (
            {"tolerations": [{"operator": "Gt", "key": "a"}]},
            'spec.tolerations[0].operator: "Gt" is not one of Equal, Exists',
        ),
        ({"nodeName": 5}, "spec.nodeName: 5 is not a string: write it in quotes"),
        ({"priority": "high"}, 'spec.priority: "high" is not a whole number of at most 2147483647'),
        ({"containers": 1}, "spec.containers: 1 is not a list"),
        (
            {"containers": ["c"]},
            'spec.containers[0]: "c" is not a mapping of field names to values',
        ),
    ],
)
def test_what_cannot_be_read_is_told(spec: Any, message: str):
    assert told(pod(spec=spec)) == message


def test_all_errors_are_told_at_once_and_the_rest_is_kept():
    requests = {"cpu": "1", "memory": "lots", "nvidia.com/gpu": "-1"}
    made = pod(spec={"containers": [{"resources": {"requests": requests}}]})
    message = told(made)
    assert message.count("spec.containers[0].resources.requests") == 2
    assert task(made).shape.request == (("cpu", 1000),)


def test_an_operator_needs_its_values():
    for operator, values, fault in (
        ("In", [], "is empty: In needs at least one value"),
        ("Gt", ["1.5"], "is not valid with Gt: write one whole number in quotes"),
        ("Exists", ["1"], "has no effect with Exists: remove it"),
    ):
        wanted = {"key": "a", "operator": operator, "values": values}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        assert fault in told(pod(spec={"affinity": {"nodeAffinity": {REQUIRED: terms}}}))


def test_a_sum_that_cannot_be_counted():
    most = {"resources": {"requests": {"memory": "9223372036854775807"}}}
    assert "sum of memory" in told(pod(spec={"containers": [most, most]}))


def test_claims_tie_a_pod_only_as_long_as_it_waits():
    claimed = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one-gpu"}]}
    assert task(pod(spec=claimed)).shape.device_claims == ("ns/one-gpu",)
    runs = task(pod(spec={**claimed, "nodeName": "n1"}))
    assert runs.device_claims == ("ns/one-gpu",)
    assert runs.shape.device_claims == ()
    assert task(pod(spec=claimed, status={"phase": "Succeeded"})).device_claims == ()
    assert task(pod(spec={"resourceClaims": [None, {"name": 3}]})).problem is None


def test_a_pod_without_a_name_is_told():
    assert "metadata.name" in told({"kind": "Pod"})


FIELDS = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "spec",
    "status",
    "metadata",
    "containers",
    "resources",
    "requests",
    "limits",
    "cpu",
    "initContainers",
    "affinity",
    "nodeAffinity",
    "podAffinity",
    "tolerations",
    "volumes",
    "ephemeral",
    "persistentVolumeClaim",
    "phase",
    "containerStatuses",
    "allocatedResources",
    "schedulerName",
    "nodeName",
    "priority",
    "topologySpreadConstraints",
    "matchLabelKeys",
    "deletionTimestamp",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "ports",
    "hostPort",
]

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(json_like, json_like, json_like)
@example([], {"containers": [{}]}, {"phase": []})
@example({"name": "x"}, {"volumes": [{"ephemeral": []}]}, {"conditions": [1]})
def test_nothing_that_json_can_hold_raises(metadata: Any, spec: Any, status: Any):
    made = {"metadata": metadata, "spec": spec, "status": status}
    assert isinstance(task(made), Task)
    assert isinstance(task(spec), Task)
    assert has_left_cluster(made) in (True, False)


# --- alike pods ----------------------------------------------------------------------------------


def test_alike_pods_share_their_shape():
    decoder = PodDecoder()
    first, second = decoder.task(pod("a")), decoder.task(pod("b", status={"phase": "Running"}))
    assert first.shape is second.shape


def test_a_shape_met_another_way_is_the_same_object():
    decoder = PodDecoder()
    written = {"containers": [{"resources": {"requests": {"cpu": "1000m"}}}]}
    assert decoder.task(pod("a")).shape is decoder.task(pod("b", spec=written)).shape


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"namespace": "a"}, {"namespace": "b"}),
        ({"labels": {"rev": "1"}}, {"labels": {"rev": "2"}}),
        ({"name": "x"}, {"name": "y"}),
    ],
)
def test_what_a_shape_takes_from_the_pod_itself_keeps_pods_apart(first: Any, second: Any):
    spec = {
        "affinity": {"podAntiAffinity": {REQUIRED: [term(matchLabelKeys=["rev"])]}},
        "volumes": [{"name": "v", "ephemeral": {}}],
    }
    decoder = PodDecoder()
    one, two = decoder.task(pod(spec=spec, **first)), decoder.task(pod(spec=spec, **second))
    assert one.shape != two.shape
    assert one.shape == task(pod(spec=spec, **first)).shape
    assert two.shape == task(pod(spec=spec, **second)).shape


@given(json_like, json_like)
@example({}, {"containers": False})
@example({}, {"volumes": ["claim"]})
@example({"affinity": None}, {"affinity": 0})
def test_a_decoder_reads_as_if_it_had_seen_nothing_before(first: Any, second: Any):
    decoder = PodDecoder()
    for spec in (first, second, first):
        made = pod()
        made["spec"] = spec
        assert decoder.read(made)[0] == PodDecoder().read(made)[0]
