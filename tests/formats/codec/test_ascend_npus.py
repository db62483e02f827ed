"""Ascend NPUs as HAMi's device plugin reads and writes them, and the templates of chips."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optsched.cluster.node_resources import Chip, GpuShare, GpuShareRequest, Template
from optsched.formats.codec.ascend_npus import KNOWN_CHIPS
from optsched.formats.codec.gpu_shares import (
    DeviceTable,
    gpu_bind_annotations,
    gpu_share_annotations,
    parse_device_table,
)
from optsched.formats.codec.nodes import parse_node
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from tests.formats.codec.test_gpu_shares import config_map, node, pod, read

REGISTER = "hami.io/node-register-Ascend310P"
NAME = "huawei.com/Ascend310P"
OFFERED = {NAME: "14"}
DEVICES = [
    {"id": f"npu-{i}", "count": 7, "devmem": 21527, "devcore": 8, "type": "Ascend310P"}
    for i in range(2)
]


def report(*devices: object, **more: str) -> dict[str, Any]:
    return node({REGISTER: json.dumps(list(devices)), **more}, OFFERED)


def npus(obj: dict[str, Any], table: DeviceTable | None = None):
    made, errors = parse_node(obj, table or DeviceTable())
    assert made is not None
    return made, errors


def test_reported_npus_are_cut_as_is_known_of_their_chip() -> None:
    made, errors = npus(report(*DEVICES))
    assert errors == ()
    assert [(c.key, c.memory, c.sharers, c.npu, c.is_healthy) for c in made.shared_gpus] == [
        (f"npu-{i}", 21527, 7, "Ascend310P", True) for i in range(2)
    ]
    (chip,) = {c.chip for c in made.shared_gpus}
    assert chip is not None
    assert [chip.cut(m) for m in (1, 3072, 3073, 12289, 24576, 24577)] == [
        Template("vir01", 3072),
        Template("vir01", 3072),
        Template("vir02", 6144),
        Template("", 21527),
        Template("", 21527),
        None,
    ]


def test_who_says_nothing_of_health_is_ill_beside_one_that_does() -> None:
    well, silent = {**DEVICES[0], "health": True}, DEVICES[1]
    made, _ = npus(report(well, silent))
    assert [c.is_healthy for c in made.shared_gpus] == [True, False]


def test_networks_are_read() -> None:
    wired = [{**d, "custominfo": {"NetworkID": i}} for i, d in enumerate(DEVICES)]
    assert [c.network for c in npus(report(*wired))[0].shared_gpus] == [0, 1]


@pytest.mark.parametrize(
    "manifest",
    [
        node({REGISTER: json.dumps(DEVICES)}, {NAME: "0"}),
        node({REGISTER: json.dumps(DEVICES)}),
        report(*DEVICES, **{"hami.io/node-handshake-Ascend310P": "Deleted_2026.11.21 10:00:00"}),
    ],
)
def test_npus_that_the_node_does_not_offer_are_none(manifest: dict[str, Any]) -> None:
    made, errors = npus(manifest)
    assert (made.shared_gpus, made.card_problem, errors) == ((), "", ())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("npu-0,7,21527", "is not a list of devices"),
        ('{"id": "npu-0"}', "is not a list of devices"),
        ('[{"id": "npu-0"}]', "devmem"),
        ('[{"id": "npu-0", "devmem": "much"}]', "not a whole number"),
        ('[{"id": "a:b", "devmem": 1}]', "is not the ID of a device"),
        (json.dumps([DEVICES[0], DEVICES[0]]), "more than once"),
        ("[3]", "mapping"),
    ],
)
def test_a_bad_report_hides_the_npus_of_its_node_alone(source: str, told: str) -> None:
    vgpus = {"volcano.sh/node-vgpu-register": "GPU-a,10,49140,T4,true,hami-core:"}
    bad = node({REGISTER: source, **vgpus}, OFFERED)
    made, errors = npus(bad)
    assert [c.key for c in made.shared_gpus] == ["GPU-a"]
    assert any(told in str(e) and REGISTER in e.path for e in errors)
    assert told in made.card_problem
    good = report(*DEVICES)
    good["metadata"]["name"] = "good"
    first, second = assemble([good, bad]).snapshot.nodes
    assert (len(first.shared_gpus), len(second.shared_gpus)) == (2, 1)


def test_nodes_that_share_without_templates_say_that_they_are_left_out() -> None:
    made, (error,) = npus(report(*DEVICES, **{"hami-vnpu-core": "true"}))
    assert made.shared_gpus == ()
    assert "hami-vnpu-core" in error.path
    assert "hami-vnpu-core" in made.card_problem
    assert len(npus(report(*DEVICES, **{"hami-vnpu-core": "false"}))[0].shared_gpus) == 2


# --- pods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        ({NAME: "1", f"{NAME}-memory": "4096"}, (GpuShareRequest(1, 4096, npu="Ascend310P"),)),
        ({f"{NAME}-memory": "4k"}, (GpuShareRequest(1, 4000, npu="Ascend310P"),)),
        ({NAME: "2"}, (GpuShareRequest(2, 0, 100, npu="Ascend310P"),)),
        ({"huawei.com/Ascend910B4-1": "1"}, (GpuShareRequest(1, 0, 100, npu="Ascend910B4-1"),)),
        ({"huawei.com/Ascend910": "8"}, ()),
        ({"huawei.com/Ascend310P-2c": "1"}, ()),
        ({"huawei.com/npu-core": "2"}, ()),
    ],
)
def test_requests_of_containers(
    limits: dict[str, str], requests: tuple[GpuShareRequest, ...]
) -> None:
    task, errors = read(pod(limits, {"cpu": "1"}))
    assert errors == ()
    assert task.shape.shared_gpus == requests
    asked = dict(task.shape.request)
    assert not any(name.endswith("-memory") for name in asked)
    assert set(limits) - {f"{NAME}-memory"} <= set(asked)


def test_what_pods_are_told_when_they_are_bound() -> None:
    uses = (
        GpuShare("npu-1", 6144, 0, 0, "vir02", "Ascend310P"),
        GpuShare("npu-0", 21527, 0, 1, "", "Ascend310P"),
    )
    told = gpu_bind_annotations(uses, "n", 5_000)
    assert told == {
        "hami.io/Ascend310P-devices-allocated": (
            "npu-1,Ascend310P,6144,0:;npu-0,Ascend310P,21527,0:;"
        ),
        "hami.io/Ascend310P-devices-to-allocate": told["hami.io/Ascend310P-devices-allocated"],
        "huawei.com/Ascend310P": '[{"UUID":"npu-1","temp":"vir02"},{"UUID":"npu-0"}]',
        "predicate-time": "5",
        "hami.io/vgpu-node": "n",
        "hami.io/vgpu-time": "5",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "5",
    }
    assert read(pod({NAME: "1"}, {NAME: "1"}, annotations=told))[0].shared_gpus == uses
    del told["hami.io/Ascend310P-devices-allocated"]
    assert read(pod({NAME: "1"}, {NAME: "1"}, annotations=told))[0].shared_gpus == uses
    gpu = GpuShare("GPU-a", 100)
    assert gpu_share_annotations((gpu, *uses))["volcano.sh/vgpu-ids-new"] == "GPU-a,NVIDIA,100,0:"


@pytest.mark.parametrize("source", ["", "{", "[3]", '{"UUID": "npu-1"}', '[{"temp": "vir02"}]'])
def test_templates_without_a_reading_are_none(source: str) -> None:
    told = {
        "hami.io/Ascend310P-devices-allocated": "npu-1,Ascend310P,6144,0:;",
        "huawei.com/Ascend310P": source,
    }
    (use,) = read(pod({NAME: "1"}, annotations=told))[0].shared_gpus
    assert use == GpuShare("npu-1", 6144, npu="Ascend310P")


# --- chips ---------------------------------------------------------------------------------------

VNPUS = """vnpus:
- chipName: 310P3
  commonWord: Ascend310P
  resourceName: huawei.com/Ascend310P
  resourceMemoryName: huawei.com/Ascend310P-memory
  memoryAllocatable: 21527
  memoryCapacity: 24576
  aiCore: 8
  aiCPU: 7
  templates:
  - {name: half, memory: 10000, aiCore: 4}
  - {name: small, memory: 2000}
"""
OURS = Chip("Ascend310P", 21527, 24576, (Template("small", 2000), Template("half", 10000)))


def test_a_config_map_says_how_chips_are_cut() -> None:
    table, errors = parse_device_table(config_map(VNPUS))
    assert (table.chips, errors) == ((OURS,), ())
    wrapped = VNPUS.replace("vnpus:\n", "vnpus:\n  hamiVnpuCore: false\n  configs:\n")
    wrapped = wrapped.replace("\n- ", "\n  - ").replace("\n  chip", "\n    chip")
    head, body = wrapped.split("configs:\n")
    body = body.replace("\n  ", "\n    ").replace("\n    - {", "\n      - {")
    assert parse_device_table(config_map(f"{head}configs:\n{body}")) == (table, ())
    assembled = assemble([report(*DEVICES), config_map(VNPUS)])
    assert {c.chip for c in assembled.snapshot.nodes[0].shared_gpus} == {OURS}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("vnpus: 3", "vnpus"),
        (VNPUS.replace("memoryCapacity: 24576", "memoryCapacity: 0"), "memoryCapacity"),
        (VNPUS.replace("memory: 2000", "memory: x"), "memory"),
        (VNPUS.replace("commonWord: Ascend310P", "commonWord: MLU370"), "commonWord"),
        (VNPUS.replace("Name: huawei.com/Ascend310P\n", "Name: npu\n"), "resourceName"),
    ],
)
def test_chips_without_a_reading_are_named_and_the_known_ones_stay(text: str, path: str) -> None:
    table, errors = parse_device_table(config_map(text))
    assert table.chips == ()
    assert any(path in error.path for error in errors)
    made, _ = npus(report(*DEVICES), table)
    assert {c.chip for c in made.shared_gpus} == {c for c in KNOWN_CHIPS if c.name == "Ascend310P"}


def test_nobody_knows_how_a_new_chip_is_cut() -> None:
    new = {"hami.io/node-register-Ascend999X": json.dumps(DEVICES)}
    made, errors = npus(node(new, {"huawei.com/Ascend999X": "2"}))
    assert errors == ()
    assert {c.chip for c in made.shared_gpus} == {None}


def test_a_dump_comes_back_as_it_was() -> None:
    devices = [{**DEVICES[0], "custominfo": {"NetworkID": 1}, "health": True}, DEVICES[1]]
    bad = node({REGISTER: "?"}, OFFERED)
    bad["metadata"]["name"] = "bad"
    told = gpu_share_annotations([GpuShare("npu-0", 10000, 0, 0, "half", "Ascend310P")])
    mode = {"huawei.com/vnpu-mode": "template"}
    runs = pod({NAME: "1", f"{NAME}-memory": "9000"}, annotations={**told, **mode})
    snapshot = assemble([report(*devices), bad, runs, config_map(VNPUS)]).snapshot
    assert {c.chip for n in snapshot.nodes for c in n.shared_gpus} == {OURS}
    assert any(t.shared_gpus for n in snapshot.nodes for t in n.residents)
    assert snapshot.node_by_name["bad"].card_problem
    assert not any("Ascend" in key for g in snapshot.gangs for key in g.annotations)
    assert assemble(encode(snapshot)).snapshot == snapshot
