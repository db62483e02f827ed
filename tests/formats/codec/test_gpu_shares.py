"""Tests of shared GPUs as device plugins read and write them."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.cluster.node_resources import NO_LIMIT, GpuShare, GpuShareRequest, SharedGpu
from optsched.formats.codec.gpu_shares import gpu_share_annotations
from optsched.formats.codec.nodes import parse_node
from optsched.formats.codec.pods.reader import DecodeOptions, PodDecoder
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from tests.formats.objects import thing

REGISTER = (
    "GPU-a,10,49140,NVIDIA-NVIDIA GeForce RTX 4090,true,hami-core:"
    "GPU-b,4,16384,NVIDIA-Tesla T4,false,mig:"
)


def node(annotations: dict[str, str], offered: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "annotations": annotations},
        "status": {"allocatable": {"cpu": "8", **(offered or {})}},
    }


def pod(*limits: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "resources": {"limits": asked}} for i, asked in enumerate(limits)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "annotations": annotations or {},
        },
        "spec": {"schedulerName": "volcano", "containers": containers, "nodeName": "n"},
    }


def read(manifest: dict[str, Any]):
    return PodDecoder(DecodeOptions()).read(manifest)


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "offered", "path"),
    [
        (
            {},
            {"volcano.sh/gpu-number": "2000000000", "volcano.sh/gpu-memory": "4000000000"},
            "status.allocatable[volcano.sh/gpu-number]: 2000000000 is more than a machine can have",
        ),
        (
            {"volcano.sh/node-vgpu-register": "GPU,1,1,m,true,hami-core:" * 1025},
            {},
            'metadata.annotations[volcano.sh/node-vgpu-register]: "1025 GPUs" is more than a '
            "machine can have",
        ),
        (
            {},
            {"nvidia.com/gpu": "2000000000"},
            "status.allocatable[nvidia.com/gpu]: 2000000000 is more than a machine can have",
        ),
    ],
)
def test_absurd_numbers_are_named_and_ignored(
    annotations: dict[str, str], offered: dict[str, str], path: str
) -> None:
    """The other resources of the node count: a mistake of a device plugin removes no CPU."""
    made, errors = parse_node(node(annotations, offered))
    assert made is not None
    assert made.shared_gpus == ()
    assert dict(made.allocatable)["cpu"] == 8000
    assert "nvidia.com/gpu" not in dict(made.allocatable)
    assert [str(error).partition(": write at most")[0] for error in errors] == [path]
    assert made.card_problem == str(errors[0])


def test_registered_cards() -> None:
    made, errors = parse_node(node({"volcano.sh/node-vgpu-register": REGISTER}))
    assert errors == ()
    assert made is not None
    assert made.shared_gpus == (
        SharedGpu("GPU-a", 49140, 10, "hami-core", "NVIDIA-NVIDIA GeForce RTX 4090"),
        SharedGpu("GPU-b", 16384, 4, "mig", "NVIDIA-Tesla T4", is_healthy=False),
    )


def test_older_registers_do_not_name_the_mode() -> None:
    made, _ = parse_node(node({"volcano.sh/node-vgpu-register": "GPU-a,1,1126,T4,true:"}))
    assert made is not None
    assert [c.mode for c in made.shared_gpus] == ["hami-core"]


def test_numbered_cards_share_the_memory_of_the_node() -> None:
    offered = {"volcano.sh/gpu-memory": "65536", "volcano.sh/gpu-number": "4"}
    made, errors = parse_node(node({"volcano.sh/gpu-unhealthy-ids": "2"}, offered))
    assert errors == ()
    assert made is not None
    assert [(c.key, c.memory, c.sharers) for c in made.shared_gpus] == [
        (str(i), 16384, NO_LIMIT) for i in range(4)
    ]
    assert [c.key for c in made.shared_gpus if not c.is_healthy] == ["2"]


def test_a_plugin_that_has_left_takes_its_cards_along() -> None:
    left = {
        "volcano.sh/node-vgpu-register": REGISTER,
        "volcano.sh/node-vgpu-handshake": "Deleted_2026.11.21 10:00:00",
    }
    made, _ = parse_node(node(left))
    assert made is not None
    assert made.shared_gpus == ()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("volcano.sh/node-vgpu-register", "GPU-a,10:", "GPU-a,10"),
        ("volcano.sh/node-vgpu-register", "GPU-a,ten,1,T4,true,hami-core:", "ten"),
        ("volcano.sh/gpu-unhealthy-ids", "1,x", "1,x"),
    ],
)
def test_what_has_no_reading_is_told(key: str, value: str, told: str) -> None:
    offered = {"volcano.sh/gpu-memory": "8", "volcano.sh/gpu-number": "2"}
    made, (error,) = parse_node(node({key: value}, offered))
    assert made is not None
    assert key in error.path
    assert told in str(error.value)


# --- pods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        (
            {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000"},
            GpuShareRequest(2, 3000),
        ),
        ({"volcano.sh/vgpu-memory": "3k"}, GpuShareRequest(1, 3000)),
        ({"volcano.sh/vgpu-number": "1"}, GpuShareRequest(1, percent=100)),
        (
            {
                "volcano.sh/vgpu-number": "1",
                "volcano.sh/vgpu-memory-percentage": "25",
                "volcano.sh/vgpu-cores": "50",
            },
            GpuShareRequest(1, percent=25, cores=50),
        ),
    ],
)
def test_requests_of_containers(limits: dict[str, str], request_: GpuShareRequest) -> None:
    task, errors = read(pod(limits, {"cpu": "1"}))
    assert errors == ()
    assert task.shape.shared_gpus == (request_,)
    assert "volcano.sh/vgpu-memory-percentage" not in dict(task.shape.request)


def test_who_spreads_without_a_group_is_apart_from_nobody() -> None:
    told = {"volcano.sh/vgpu-podgroup-policy": "spread"}
    assert read(pod({"cpu": "1"}, annotations=told))[0].shape.notes == ()
    other = {"volcano.sh/vgpu-podgroup-policy": "pack", "scheduling.k8s.io/group-name": "pg"}
    assert read(pod({"cpu": "1"}, annotations=other))[0].shape.notes == ()


def test_what_running_pods_were_told() -> None:
    ids = "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,10,0:"
    asked = {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000"}
    one = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10"}
    task, _ = read(pod(asked, one, annotations={"volcano.sh/vgpu-ids-new": ids}))
    assert task.shared_gpus == (
        GpuShare("GPU-a", 3000, 50),
        GpuShare("GPU-b", 3000, 50),
        GpuShare("GPU-a", 10, 0, container=1),
    )
    numbered = pod({"volcano.sh/gpu-memory": "512"}, annotations={"volcano.sh/gpu-index": "0"})
    assert read(numbered)[0].shared_gpus == (GpuShare("0", 512),)


def test_an_index_without_reading_is_a_remark() -> None:
    task, (remark,) = read(pod({"cpu": "1"}, annotations={"volcano.sh/gpu-index": "first"}))
    assert task.problem is None
    assert "volcano.sh/gpu-index" in remark.path


GEOMETRIES = """nvidia:
  resourceCountName: volcano.sh/vgpu-number
  knownMigGeometries:
  - models: [A30]
    allowedGeometries:
    - group: group1
      geometries: [{name: 1g.6gb, memory: 6144, count: 4}]
    - group: group2
      geometries: [{name: 2g.12gb, memory: 12288, count: 1}, {name: 1g.6gb, memory: 6144, count: 2}]
"""
CUT = "GPU-m,10,24576,NVIDIA-A30,true,mig:"


def config_map(text: str = GEOMETRIES) -> dict[str, Any]:
    return {**thing("v1", "ConfigMap", "c", "kube-system"), "data": {"device-config.yaml": text}}


def test_geometries_come_from_a_config_map() -> None:
    there = node({"volcano.sh/node-vgpu-register": CUT + REGISTER})
    assembled = assemble([there, config_map(), thing("v1", "ConfigMap", "other", "ns")])
    assert assembled.problems == ()
    assert assembled.ignored == {"v1 ConfigMap": 1}
    card, *others = assembled.snapshot.nodes[0].shared_gpus
    assert [g.name for g in card.geometries] == ["group1", "group2"]
    assert card.geometries[1].locate_slice("2") == (1, 1)
    assert card.geometries[1].locate_slice("3") is None
    assert card.geometries[1].position(1, 1) == 2
    assert not any(other.geometries for other in others)
    assert assemble(encode(assembled.snapshot)).snapshot == assembled.snapshot


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("nvidia: 3", "nvidia"),
        ("nvidia: {knownMigGeometries: 3}", "knownMigGeometries"),
        (GEOMETRIES.replace("count: 4", "count: 0"), "count"),
        (GEOMETRIES.replace("memory: 6144, count: 4", "memory: x, count: 4"), "memory"),
        (GEOMETRIES.replace("group: group1", "group: 7"), "group"),
        ("nvidia: [", "device-config.yaml"),
    ],
)
def test_geometries_without_a_reading_are_named(text: str, path: str) -> None:
    there = node({"volcano.sh/node-vgpu-register": CUT})
    assembled = assemble([there, config_map(text)])
    assert any(path in str(problem) for problem in assembled.problems)
    assert assembled.snapshot.nodes[0].shared_gpus[0].geometries == ()


def test_slices_of_pods_are_told_and_read() -> None:
    use = GpuShare("GPU-m", 6144, 0, instance="group1-3")
    marks = gpu_share_annotations([use])
    assert marks == {"volcano.sh/vgpu-ids-new": "GPU-m[group1-3],NVIDIA,6144,0:"}
    asked = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "6000"}
    assert read(pod(asked, annotations=marks))[0].shared_gpus == (use,)


def test_a_dump_comes_back_as_it_was() -> None:
    shared = node({"volcano.sh/node-vgpu-register": REGISTER})
    offered = {"volcano.sh/gpu-memory": "64", "volcano.sh/gpu-number": "4"}
    numbered = node({"volcano.sh/gpu-unhealthy-ids": "0,3"}, offered)
    numbered["metadata"]["name"] = "m"
    ids = {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,3000,50:", "nvidia.com/use-gputype": "4090"}
    runs = pod({"volcano.sh/vgpu-memory": "3000", "volcano.sh/vgpu-cores": "50"}, annotations=ids)
    runs["metadata"]["annotations"] |= {
        "volcano.sh/vgpu-podgroup-policy": "spread",
        "scheduling.k8s.io/group-name": "pg",
        "volcano.sh/vgpu-use-gpuuuid": "GPU-a",
    }
    group = thing("scheduling.volcano.sh/v1beta1", "PodGroup", "pg", "ns")
    snapshot = assemble([shared, numbered, runs, group]).snapshot
    ((kept, *_),) = (n.residents for n in snapshot.nodes if n.residents)
    assert ("volcano.sh/vgpu-podgroup-policy", "ns/pg") in kept.shape.notes
    assert sum(len(n.shared_gpus) for n in snapshot.nodes) == 6
    assert any(t.shared_gpus for n in snapshot.nodes for t in n.residents)
    assert assemble(encode(snapshot)).snapshot == snapshot
