from __future__ import annotations

from typing import Any

import pytest

from optsched.api.queue import (
    Cluster,
    DequeueStrategy,
    NodeGroupTerms,
    Queue,
    QueueAffinity,
    QueueCounts,
    QueueState,
    parse_queue,
)

GI = 2**30


def queue(spec: Any = None, status: Any = None, **meta: Any) -> Queue:
    found, errors = parse_queue(
        {"metadata": {"name": "lab-a", **meta}, "spec": spec, "status": status}
    )
    assert found is not None
    assert found.errors == errors
    return found


def paths(spec: Any = None, status: Any = None) -> list[str]:
    return [error.path for error in queue(spec, status).errors]


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_queue_has_volcanos_defaults(empty: Any):
    found = queue(empty, empty)
    assert not found.errors
    assert (found.weight, found.priority, found.parent) == (1, 0, "")
    assert found.reclaimable
    assert found.dequeue_strategy is DequeueStrategy.TRAVERSE
    assert found.status.state is QueueState.OPEN
    assert found.capability == found.deserved == found.guarantee == {}


def test_every_field_of_a_full_queue():
    found = queue(
        {
            "weight": 4,
            "capability": {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"},
            "deserved": {"cpu": 32},
            "guarantee": {"resource": {"cpu": "16", "memory": "64Gi"}},
            "reclaimable": False,
            "parent": "dept-a",
            "priority": 100,
            "affinity": {
                "nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["a100"]},
                "nodeGroupAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": ["old", "slow"]
                },
            },
            "dequeueStrategy": "fifo",
            "type": "batch",
            "extendClusters": [{"name": "b", "weight": 2, "capacity": {"cpu": "1"}}],
        },
        {
            "state": "Closing",
            "allocated": {"cpu": "32", "nvidia.com/gpu": "7"},
            "running": 3,
            "pending": 2,
            "inqueue": 1,
            "completed": 9,
            "unknown": 4,
            "reservation": {"nodes": ["n1"], "resource": {"cpu": "500m"}},
        },
    )
    assert not found.errors
    assert found.capability == {"cpu": 64000, "memory": 256 * GI, "nvidia.com/gpu": 8}
    assert found.deserved == {"cpu": 32000}
    assert found.guarantee == {"cpu": 16000, "memory": 64 * GI}
    assert (found.weight, found.parent, found.priority, found.type) == (4, "dept-a", 100, "batch")
    assert not found.reclaimable
    assert found.affinity == QueueAffinity(
        node_group_affinity=NodeGroupTerms(required=("a100",)),
        node_group_anti_affinity=NodeGroupTerms(preferred=("old", "slow")),
    )
    assert found.dequeue_strategy is DequeueStrategy.FIFO
    assert found.extend_clusters == (Cluster("b", 2, {"cpu": 1000}),)
    assert found.status.state is QueueState.CLOSING
    assert found.status.allocated == {"cpu": 32000, "nvidia.com/gpu": 7}
    assert found.status.counts == QueueCounts(4, 2, 3, 1, 9)
    assert found.status.reserved_nodes == ("n1",)
    assert found.status.reservation == {"cpu": 500}


def test_a_guarantee_without_a_deserved_amount_is_accepted():
    found = queue({"guarantee": {"resource": {"cpu": "16"}}, "deserved": {"memory": "1Gi"}})
    assert not found.errors
    assert found.deserved == {"memory": GI}
    assert found.effective_deserved == {"cpu": 16000, "memory": GI}


def test_a_deserved_amount_below_the_guarantee_is_an_error():
    found = queue({"guarantee": {"resource": {"cpu": "16"}}, "deserved": {"cpu": "8"}})
    assert found.errors
    assert [str(error) for error in found.errors] == [
        'spec.deserved[cpu]: "8" is below the guarantee: write at least 16'
    ]


def test_a_capability_below_the_guarantee_is_an_error():
    spec = {"guarantee": {"resource": {"memory": "64Gi"}}, "capability": {"memory": "1000"}}
    assert [str(error) for error in queue(spec).errors] == [
        'spec.capability[memory]: "1000" is below the guarantee: write at least 64Gi'
    ]


def test_parts_of_devices_are_rounded_down_in_shares_and_up_in_guarantees():
    """No pod gets a part of a device, so 2 devices exceed a share of 1.5.

    Volcano also counts parts.
    """
    spec = {
        "capability": {"nvidia.com/gpu": "2.5", "cpu": "1500m", "memory": "0.5"},
        "deserved": {"nvidia.com/gpu": "1.5", "cpu": "500m"},
        "guarantee": {"resource": {"nvidia.com/gpu": "500m"}},
    }
    found = queue(spec)
    assert not found.errors
    assert found.capability == {"nvidia.com/gpu": 2, "cpu": 1500, "memory": 1}
    assert found.deserved == {"nvidia.com/gpu": 1, "cpu": 500}
    assert found.guarantee == {"nvidia.com/gpu": 1}


def test_a_share_rounded_down_is_not_below_its_guarantee_rounded_up():
    half = {"nvidia.com/gpu": "0.5"}
    found = queue({"guarantee": {"resource": half}, "deserved": half})
    assert (found.errors, found.deserved) == ((), {"nvidia.com/gpu": 1})
    found = queue({"guarantee": {"resource": half}, "capability": half})
    assert [str(error) for error in found.errors] == [
        'spec.capability[nvidia.com/gpu]: "0" is below the guarantee: write at least 1'
    ]


def test_amounts_equal_to_the_guarantee_are_fine():
    amounts = {"cpu": "16", "nvidia.com/gpu": 2}
    spec = {"guarantee": {"resource": amounts}, "deserved": amounts, "capability": amounts}
    assert not queue(spec).errors


@pytest.mark.parametrize(("weight", "read"), [(0, 1), (1, 1), (65535, 65535), (None, 1)])
def test_weights_that_are_read(weight: Any, read: int):
    assert queue({"weight": weight}).weight == read


@pytest.mark.parametrize("weight", [-1, 65536, "4", 1.5, 0.0, True, False, [1]])
def test_weights_that_are_errors(weight: Any):
    found = queue({"weight": weight})
    assert [error.path for error in found.errors] == ["spec.weight"]
    assert found.weight == 1


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"priority": -1}, "spec.priority"),
        ({"priority": 2**31}, "spec.priority"),
        ({"reclaimable": "yes"}, "spec.reclaimable"),
        ({"dequeueStrategy": "lifo"}, "spec.dequeueStrategy"),
        ({"parent": ["root"]}, "spec.parent"),
        ({"capability": {"cpu": "1 Gi"}}, "spec.capability[cpu]"),
        ({"capability": ["cpu"]}, "spec.capability"),
        ({"deserved": {"cpu": "-1"}}, "spec.deserved[cpu]"),
        ({"guarantee": {"resource": {"memory": "16Ei"}}}, "spec.guarantee.resource[memory]"),
        ({"guarantee": "1"}, "spec.guarantee"),
        ({"affinity": {"nodeGroupAffinity": []}}, "spec.affinity.nodeGroupAffinity"),
        ({"extendClusters": {"name": "a"}}, "spec.extendClusters"),
        ({"extendClusters": ["a"]}, "spec.extendClusters[0]"),
        ({"extendClusters": [{"weight": "1"}]}, "spec.extendClusters[0].weight"),
        ({"dra": {"capability": {"h100": {}}}}, "spec.dra.capability[h100].count"),
        ({"dra": {"capability": [1]}}, "spec.dra.capability"),
        ("weight: 1", "spec"),
    ],
)
def test_a_bad_field_is_named_and_closes_this_queue(spec: Any, path: str):
    assert paths(spec) == [path]
    assert queue(spec).errors


@pytest.mark.parametrize(
    ("status", "path"),
    [
        ({"state": "Ajar"}, "status.state"),
        ({"allocated": {"cpu": "x"}}, "status.allocated[cpu]"),
        ({"running": -1}, "status.running"),
        ({"reservation": {"nodes": [1]}}, "status.reservation.nodes[0]"),
    ],
)
def test_a_bad_status_is_named(status: Any, path: str):
    assert paths(None, status) == [path]


def test_all_problems_come_at_once_and_the_rest_is_kept():
    found = queue({"weight": -1, "priority": "high", "capability": {"cpu": "x", "memory": "1Gi"}})
    assert [error.path for error in found.errors] == [
        "spec.capability[cpu]",
        "spec.weight",
        "spec.priority",
    ]
    assert found.capability == {"memory": GI}


def test_an_unknown_choice_lists_what_would_do():
    (error,) = queue(None, {"state": "Ajar"}).errors
    assert str(error) == 'status.state: "Ajar" is not one of Open, Closed, Closing, Unknown'


@pytest.mark.parametrize("obj", [None, {}, {"metadata": {}}, []])
def test_without_a_name_there_is_no_queue(obj: Any):
    found, errors = parse_queue(obj)
    assert found is None
    assert len(errors) == 1


def test_what_go_clients_send_is_read():
    found, errors = parse_queue(
        {
            "metadata": {"name": "q-a2-u7", "creationTimestamp": None},
            "spec": {"guarantee": {}, "parent": "q-a2", "deserved": None},
            "status": {"allocated": None, "reservation": {}, "state": ""},
        }
    )
    assert found is not None
    assert errors == ()
    assert not found.errors


@pytest.mark.parametrize(
    ("state", "is_open"),
    [("", True), ("Open", True), ("Closed", False), ("Closing", False), ("Unknown", False)],
)
def test_a_queue_is_open_unless_its_status_says_otherwise(state: str, is_open: bool):
    assert (queue(None, {"state": state}).status.state is QueueState.OPEN) is is_open


def test_annotations_that_matter_are_handed_on_as_written():
    found = queue(
        annotations={
            "volcano.sh/hierarchy": "root/eng/prod",
            "volcano.sh/hierarchy-weights": "1/2/8",
            "volcano.sh/overuse-tolerance": "0",
        }
    )
    assert found.hierarchy == "root/eng/prod"
    assert found.hierarchy_weights == "1/2/8"
    assert found.overuse_tolerance == "0"
    assert queue().hierarchy == queue().hierarchy_weights == queue().overuse_tolerance == ""


def test_device_quotas_count_under_volcanos_keys():
    quota = {"h100": {"count": 4, "capacity": {"cores": "400", "memory": "80Gi"}}}
    found = queue({"dra": {"deserved": quota}})
    assert found.devices.deserved == {
        "deviceclass/h100": 4,
        "cores.deviceclass/h100": 400,
        "memory.deviceclass/h100": 80 * GI,
    }
    assert found.devices.capability == {}
