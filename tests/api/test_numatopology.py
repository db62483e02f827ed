from __future__ import annotations

from typing import Any

import pytest

from optsched.api.hypernode import (
    CpuPlace,
    NumaResource,
    PodAllocation,
    parse_numatopology,
)


def test_every_field_of_a_full_numatopology():
    held = [{"name": "main", "resources": {"cpu": "0-1"}}]
    spec = {
        "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "best-effort"},
        "resReserved": {"cpu": "500m"},
        "numares": {"cpu": {"allocatable": "1-3", "capacity": 4}},
        "cpuDetail": {"0": {}, "3": {"numa": 1, "socket": 1, "core": 1}},
        "podAllocations": [
            {"uid": "u", "name": "p", "namespace": "ml", "containerAllocations": held}
        ],
    }
    found, errors = parse_numatopology({"metadata": {"name": "n1"}, "spec": spec})
    assert found is not None
    assert errors == found.errors == ()
    assert found.policies["CPUManagerPolicy"] == "static"
    assert found.reserved == {"cpu": "500m"}
    assert found.resources == {"cpu": NumaResource("1-3", 4)}
    assert found.cpus == {"0": CpuPlace(), "3": CpuPlace(1, 1, 1)}
    assert found.pods == (PodAllocation("u", "p", "ml", tuple(held)),)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"policies": {"CPUManagerPolicy": 1}}, "spec.policies[CPUManagerPolicy]"),
        ({"cpuDetail": {"0": {"numa": -1}}}, "spec.cpuDetail[0].numa"),
        ({"numares": {"cpu": {"capacity": "4"}}}, "spec.numares[cpu].capacity"),
    ],
)
def test_a_bad_field_is_named(spec: Any, path: str):
    found, errors = parse_numatopology({"metadata": {"name": "n1"}, "spec": spec})
    assert found is not None
    assert [error.path for error in errors] == [path]


def test_without_a_name_there_is_none():
    found, errors = parse_numatopology({"spec": {}})
    assert found is None
    assert len(errors) == 1
