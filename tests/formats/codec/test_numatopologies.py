"""Numatopologies, and the exclusive CPUs and GPUs of pods."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from optsched.cluster.node_resources import Alignment, Numa, NumaCell, NumaHold, NumaNeed, NumaPart
from optsched.formats.codec.numatopologies import decision_marks, numa_parts, parse_numa
from optsched.formats.codec.pods.reader import DecodeOptions, PodDecoder
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode

if TYPE_CHECKING:
    from optsched.units import FieldError

CPUS = {str(n): {"numa": n // 4, "socket": n // 4, "core": n % 4} for n in range(8)}
SPEC: dict[str, Any] = {
    "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "single-numa-node"},
    "resReserved": {"cpu": "1500m"},
    "numares": {
        "cpu": {"allocatable": "0-1,3,6-7", "capacity": 8},
        "nvidia.com/gpu": {"allocatable": "1", "capacity": 2},
    },
    "cpuDetail": CPUS,
    "gpuDetail": {"0": {"numa": 0, "busID": "0000:3b:00.0"}, "1": {"numa": 1}},
    "podAllocations": [
        {
            "name": "p",
            "namespace": "ns",
            "containerAllocations": [
                {"name": "a", "allocations": {"cpu": "4", "nvidia.com/gpu": "0"}},
                {"name": "b", "allocations": {"cpu": "5"}},
            ],
        }
    ],
}


def numatopology(spec: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    return {
        "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
        "kind": "Numatopology",
        "metadata": {"name": "n"},
        "spec": {**deepcopy(SPEC if spec is None else spec), **changed},
    }


def read(obj: object) -> Numa:
    name, numa, errors = parse_numa(obj)
    assert (name, errors) == ("n", ())
    assert numa is not None
    return numa


def test_cells_and_who_holds_them() -> None:
    assert read(numatopology()) == Numa(
        Alignment.SINGLE,
        (
            # CPUs 0 and 1 are reserved: 1.5 CPUs, rounded up, by socket and core.
            NumaCell(0, 4, reserved=2, free_cpus=1, gpus=1, free_gpus=0),
            NumaCell(1, 4, reserved=0, free_cpus=2, gpus=1, free_gpus=1),
        ),
        (NumaHold("ns/p", "", (NumaPart(0, 0, 1), NumaPart(1, 2))),),
    )


@pytest.mark.parametrize(
    ("policies", "alignment"),
    [
        ({"CPUManagerPolicy": "none", "TopologyManagerPolicy": "restricted"}, Alignment.NONE),
        ({"CPUManagerPolicy": "static", "TopologyManagerPolicy": "restricted"}, "restricted"),
        ({"CPUManagerPolicy": "static"}, Alignment.NONE),
        ({}, Alignment.NONE),
    ],
)
def test_policies_of_the_kubelet(policies: dict[str, str], alignment: Alignment) -> None:
    assert read(numatopology(policies=policies)).alignment == alignment


def test_nothing_free_and_gpus_of_which_nothing_is_said() -> None:
    numa = read(numatopology(numares={"cpu": {"capacity": 8}}))
    assert [(c.free_cpus, c.gpus) for c in numa.cells] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("changed", "path", "words"),
    [
        (
            {"numares": {"cpu": {"allocatable": "0-x"}}},
            "spec.numares[cpu].allocatable",
            "not a list",
        ),
        (
            {"numares": {"cpu": {"allocatable": "0-99999"}}},
            "spec.numares[cpu].allocatable",
            "cpu 8",
        ),
        ({"numares": {}}, "spec.numares[cpu]", "which CPUs are free"),
        (
            {"cpuDetail": {}, "numares": {"cpu": {}}, "podAllocations": []},
            "spec.cpuDetail",
            "no CPU",
        ),
        ({"cpuDetail": {**CPUS, "x": {}}}, "spec.cpuDetail[x]", "is not the number"),
        (
            {"cpuDetail": {str(n): {"numa": n} for n in range(9)}},
            "spec.cpuDetail",
            "NUMA nodes, the most",
        ),
        ({"resReserved": {"cpu": "much"}}, "spec.resReserved[cpu]", "is not a quantity"),
        (
            {"policies": {"TopologyManagerPolicy": "tight"}},
            "spec.policies[TopologyManagerPolicy]",
            "is not a policy: write none, best-effort, restricted, single-numa-node",
        ),
        (
            {"podAllocations": [{"name": "p", "containerAllocations": [{"name": "c"}]}]},
            "spec.podAllocations[0].containerAllocations[0].allocations",
            "not a mapping",
        ),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_used(
    changed: dict[str, Any], path: str, words: str
) -> None:
    name, numa, (error,) = parse_numa(numatopology(**changed))
    assert (name, error.path) == ("n", path)
    assert words in error.message
    assert numa == Numa(problem=str(error))


def test_without_a_name_there_is_none() -> None:
    assert parse_numa({"spec": SPEC})[:2] == ("", None)


# --- pods ----------------------------------------------------------------------------------------


def container(limits: dict[str, str], **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits}, **fields}


def pod(*containers: dict[str, Any], starters: Any = (), **marks: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "annotations": marks},
        "spec": {
            "schedulerName": "volcano",
            "containers": list(containers),
            "initContainers": list(starters),
            "nodeName": "n",
        },
    }


def needs(made: dict[str, Any]) -> tuple[NumaNeed, ...]:
    task, errors = PodDecoder(DecodeOptions()).read(made)
    assert errors == ()
    return task.shape.numa


FIXED = container({"cpu": "2", "memory": "1Gi"})
PARTS = container({"cpu": "1500m", "memory": "1Gi"})


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod(FIXED), (NumaNeed(2),)),
        (pod(FIXED, FIXED), (NumaNeed(2), NumaNeed(2))),
        (pod(FIXED, PARTS), (NumaNeed(2),)),
        (pod(FIXED, container({"cpu": "1"})), ()),
        (pod(container({"cpu": "2"})), ()),
        (pod({"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}), ()),
        (pod(container({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})), (NumaNeed(2, 1),)),
        (pod(container({"nvidia.com/gpu": "4"})), (NumaNeed(0, 4),)),
        (pod(FIXED, starters=[FIXED]), (NumaNeed(2),)),
        (pod(FIXED, starters=[{**FIXED, "restartPolicy": "Always"}]), (NumaNeed(2), NumaNeed(2))),
        (pod(FIXED, starters=[container({"cpu": "1"})]), ()),
    ],
)
def test_what_containers_have_alone(made: dict[str, Any], expected: tuple[NumaNeed, ...]) -> None:
    assert needs(made) == expected


def test_requests_of_the_pod_as_a_whole_give_nobody_cpus_alone() -> None:
    made = pod(FIXED)
    made["spec"]["resources"] = {"limits": {"cpu": "4", "memory": "2Gi"}}
    assert needs(made) == ()


@pytest.mark.parametrize("policy", ["restricted", "odd"])
def test_the_policy_makes_pods_unlike(policy: str) -> None:
    decoder = PodDecoder(DecodeOptions())
    marked = decoder.task(pod(FIXED, **{"volcano.sh/numa-topology-policy": policy}))
    assert marked.shape.notes == (("volcano.sh/numa-topology-policy", policy),)
    plain = decoder.task(pod(FIXED, **{"volcano.sh/numa-topology-policy": "none"}))
    assert plain.shape.notes == ()
    assert plain.shape != marked.shape


def test_decisions_are_written_as_they_are_read() -> None:
    parts = (NumaPart(0, 4, 1), NumaPart(1, 2))
    marks = decision_marks(parts)
    assert marks == {
        "volcano.sh/topology-decision": (
            '{"numa":{"0":{"cpu":"4","nvidia.com/gpu":"1"},"1":{"cpu":"2"}}}'
        )
    }
    assert numa_parts(marks, []) == parts
    assert decision_marks(()) == {}


@pytest.mark.parametrize("text", ["%%%", "[]", '{"numa": 1}', '{"numa": {"x": {}}}', "{}"])
def test_a_decision_without_reading_is_a_remark(text: str) -> None:
    remarks: list[FieldError] = []
    assert numa_parts({"volcano.sh/topology-decision": text}, remarks) == ()
    assert [r.path for r in remarks] == ["metadata.annotations[volcano.sh/topology-decision]"]


# --- dumps ---------------------------------------------------------------------------------------

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "8"}},
}


def test_a_dump_comes_back_as_it_was() -> None:
    decided = {"volcano.sh/topology-decision": '{"numa":{"1":{"cpu":"2"}}}'}
    policy = {"volcano.sh/numa-topology-policy": "restricted"}
    made = pod(container({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}), **decided, **policy)
    snapshot = assemble([NODE, numatopology(), made]).snapshot
    (node,) = snapshot.nodes
    assert node.numa is not None
    assert node.residents[0].shape.numa == (NumaNeed(2, 1),)
    assert node.residents[0].numa == (NumaPart(1, 2),)
    assert assemble(encode(snapshot)).snapshot == snapshot


def test_a_fault_comes_back_with_a_dump() -> None:
    assembled = assemble([NODE, numatopology(numares={})])
    (problem,) = assembled.problems
    assert (problem.kind, problem.key, problem.path) == ("Numatopology", "n", "spec.numares[cpu]")
    (node,) = assembled.snapshot.nodes
    assert node == replace(node, numa=Numa(problem=node.numa.problem if node.numa else ""))
    assert assemble(encode(assembled.snapshot)).snapshot == assembled.snapshot
