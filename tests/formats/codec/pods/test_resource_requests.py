from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optsched.api.fields import Fields
from optsched.formats.codec.core_schemas import POD
from optsched.formats.codec.pods.resource_requests import pod_burst, pod_request

GI = 2**30
GOLDEN = Path(__file__).with_name("requests_golden.jsonl").read_text().splitlines()


def request(spec: Any, status: Any = None) -> dict[str, int]:
    errors: list[Any] = []
    whole = Fields({"spec": spec, "status": status}, POD, "", errors)
    found = pod_request(whole.record("spec"), whole.record("status"))
    assert not errors
    return found


def container(name: str = "c", always: bool = False, **requests: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "resources": {"requests": requests}}
    return {**made, "restartPolicy": "Always"} if always else made


BURST = {"cpu": 2000}


def limited(cpu: str, most: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": most}}}


def test_kubernetes_agrees():
    assert len(GOLDEN) == 150
    for line in GOLDEN:
        row = json.loads(line)
        assert request(row["spec"], row["status"]) == row["request"], line


def test_containers_are_summed():
    spec = {"containers": [container(cpu="500m", memory="1Gi"), container(cpu="1")]}
    assert request(spec) == {"cpu": 1500, "memory": GI}


@pytest.mark.parametrize(
    ("init", "cpu"),
    [
        # The init container alone gives max(1, 3) = 3. After a sidecar of 2, the containers need 1
        # + 2 = 3, and the init container needs 2 + 3 = 5. Before the sidecar it does not count the
        # sidecar: max(3, 3) = 3.
        ([container(cpu="3")], 3000),
        ([container(always=True, cpu="2"), container(cpu="3")], 5000),
        ([container(cpu="3"), container(always=True, cpu="2")], 3000),
    ],
)
def test_init_containers_count_where_starting_takes_more(init: Any, cpu: int):
    assert request({"containers": [container(cpu="1")], "initContainers": init}) == {"cpu": cpu}


def test_overhead_comes_on_top_of_all():
    spec = {
        "containers": [container(cpu="1")],
        "initContainers": [container(cpu="3")],
        "overhead": {"cpu": "250m", "memory": "120Mi"},
    }
    assert request(spec) == {"cpu": 3250, "memory": 120 * 2**20}


def test_a_limit_without_a_request_counts_as_one():
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 4}
    spec = {"containers": [{"resources": {"limits": limits, "requests": {"cpu": "1"}}}]}
    assert request(spec) == {"cpu": 1000, "memory": GI, "nvidia.com/gpu": 4}


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ({"requests": {"cpu": "4"}}, {"cpu": 4000, "memory": GI}),
        # The limit of a pod is its request only for resources that no container requests.
        ({"limits": {"cpu": "4", "hugepages-2Mi": "2Mi"}}, {"hugepages-2Mi": 2 * 2**20}),
        ({"requests": {"nvidia.com/gpu": 8}}, {}),
    ],
)
def test_requests_of_the_pod_as_a_whole(whole: Any, expected: dict[str, int]):
    spec = {"containers": [container(cpu="1", memory="1Gi")], "resources": whole}
    assert request(spec) == {"cpu": 1000, "memory": GI, **expected}


@pytest.mark.parametrize(
    ("spec", "burst"),
    [
        ({"containers": [limited("1", "4")]}, {"cpu": 3000}),
        ({"containers": [limited("1", "4"), container(cpu="1")]}, {"cpu": 2000}),
        ({"containers": [limited("2", "2"), container(cpu="1")]}, {}),
        ({"containers": [limited("1", "2")], "initContainers": [limited("1", "5")]}, {"cpu": 4000}),
        ({"containers": [limited("1", "2")], "overhead": {"cpu": "1"}}, {"cpu": 1000}),
        (
            {"containers": [container(cpu="1")], "resources": {"limits": {"cpu": "3"}}},
            {"cpu": 2000},
        ),
    ],
)
def test_what_limits_allow_beyond_requests(spec: Any, burst: dict[str, int]):
    fields = Fields({"spec": spec}, POD, "", []).record("spec")
    assert pod_burst(fields, request(spec)) == burst


def test_zeros_and_pods_are_left_out():
    assert request({"containers": [container(cpu="0", pods="1", memory="0")]}) == {}


@pytest.mark.parametrize(
    ("allocated", "reason", "cpu"),
    [("4", "", 4000), ("1", "", 2000), ("1", "Deferred", 2000), ("1", "Infeasible", 1000)],
)
def test_a_resize_under_way_counts_with_the_larger_amount(allocated: str, reason: str, cpu: int):
    status = {
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": allocated}}],
        "conditions": [{"type": "PodResizePending", "reason": reason}] if reason else [],
    }
    assert request({"containers": [container(cpu="2")]}, status) == {"cpu": cpu}
