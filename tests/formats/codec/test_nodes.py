from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.selectors import Taint, TaintEffect
from optsched.cluster.snapshot import Load, Node
from optsched.formats.codec.nodes import parse_node
from tests.formats.objects import node


def read(obj: Any) -> Node:
    found, errors = parse_node(obj)
    assert found is not None
    assert errors == ()
    return found


def test_a_whole_node():
    made = node(
        "n1",
        labels={"zone": "a", "nvidia.com/gpu.product": "A100"},
        unschedulable=True,
        taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
    )
    made["status"] = {
        "allocatable": {"cpu": "7500m", "memory": "1Gi", "nvidia.com/gpu": "8", "pods": 110},
        "capacity": {"cpu": "8"},
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": "True"},
        ],
    }
    assert read(made) == Node(
        name="n1",
        allocatable=(("cpu", 7500), ("memory", 2**30), ("nvidia.com/gpu", 8), ("pods", 110)),
        labels={"zone": "a", "nvidia.com/gpu.product": "A100"},
        taints=(Taint("gpu", "yes", TaintEffect.NO_SCHEDULE),),
        ready=True,
        unschedulable=True,
        gpu_model="A100",
    )


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        (None, True),
        ([], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "DiskPressure", "status": "True"}], True),
    ],
)
def test_whether_a_node_is_ready(conditions: Any, ready: bool):
    made = node()
    made["status"]["conditions"] = conditions
    assert read(made).ready is ready


def test_capacity_counts_where_nothing_is_allocatable():
    made = node()
    made["status"] = {"capacity": {"cpu": "4"}}
    assert read(made).allocatable == (("cpu", 4000),)


def test_a_bad_amount_offers_nothing_and_is_reported():
    made = node()
    made["status"]["allocatable"] = {"cpu": "8", "memory": "lots"}
    found, errors = parse_node(made)
    assert found is not None
    assert found.allocatable == (("cpu", 8000),)
    assert [e.path for e in errors] == ["status.allocatable[memory]"]
    assert found.ready


def test_more_than_any_machine_has_offers_nothing():
    obj = node()
    obj["status"]["allocatable"] = {"cpu": "8", "memory": "4Pi", "pods": "8E"}
    found, errors = parse_node(obj)
    assert found is not None
    assert found.allocatable == (("cpu", 8000), ("memory", 2**52))
    assert list(map(str, errors)) == [
        "status.allocatable[pods]: 8000000000000000000 is more than a machine can have: "
        "write at most 4503599627370496"
    ]


def test_a_node_with_an_unreadable_taint_takes_no_pods():
    good = {"key": "a", "effect": "NoExecute"}
    found, errors = parse_node(node(taints=[good, {"key": "b", "effect": "Never"}]))
    assert found is not None
    assert found.taints == (Taint("a", "", TaintEffect.NO_EXECUTE),)
    assert not found.ready
    assert [e.path for e in errors] == ["spec.taints[1].effect"]


@pytest.mark.parametrize("odd", [None, 3, [], {}, {"metadata": {}}, {"metadata": {"name": 1}}])
def test_what_is_no_node_is_told(odd: Any):
    found, errors = parse_node(odd)
    assert found is None
    assert errors


MARK = "optsched.io/load"


def marked(text: str) -> dict[str, Any]:
    made = node()
    made["metadata"]["annotations"] = {MARK: text}
    return made


@pytest.mark.parametrize(
    ("text", "cpu_ppm", "memory_ppm"),
    [
        ("cpu 30.5% memory 50% at 1970-01-01T00:00:10Z", 305_000, 500_000),
        ("cpu 0% memory 101.00005% at 1970-01-01T00:00:10Z", 0, 1_010_000),
    ],
)
def test_a_measured_load(text: str, cpu_ppm: int, memory_ppm: int):
    assert read(marked(text)).load == Load(cpu_ppm, memory_ppm, 10_000)
    assert read(node()).load is None


@pytest.mark.parametrize(
    "text", ["", "30%", "cpu 3 memory 4 at 1970-01-01T00:00:10Z", "cpu 3% memory 4% at noon"]
)
def test_a_load_without_a_reading_is_none_and_remarked_on(text: str):
    found, (error,) = parse_node(marked(text))
    assert found is not None
    assert found.load is None
    assert error.path == f"metadata.annotations[{MARK}]"
