"""The project's trace format: the decoded fields, and messages about invalid fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from optsched.cluster.trace import NodeChange, NodeEvent
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.traces.trace_file import SCHEMA, is_trace_file, read_trace_file

FAILURES = Path(__file__).parents[3] / "instances" / "traces" / "failures.yaml"
HEAD = "apiVersion: optsched.io/v1alpha1\nkind: Trace\n"
NODES = "nodes: [{name: box, allocatable: {cpu: 4}}]\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + text)
    return path


def test_every_field_has_a_meaning() -> None:
    trace, problems = read_trace_file(FAILURES)
    assert problems == ()
    assert trace.name == "failures"
    assert [n.name for n in trace.nodes] == ["gpu-0", "gpu-1", "gpu-2"]
    assert [q.name for q in trace.queues] == ["default", "research", "root", "teaching"]
    pretrain, exercise, urgent, late = trace.arrivals
    assert (pretrain.at_ms, pretrain.duration_ms, pretrain.estimate_ms) == (0, 36_000_000, None)
    assert pretrain.gang.annotations == {"optsched.io/checkpoint-interval": "1h"}
    assert dict(pretrain.gang.tasks[0].shape.request)["nvidia.com/gpu"] == 1
    assert (exercise.gang.min_member, len(exercise.gang.tasks)) == (2, 8)
    assert (urgent.gang.priority, urgent.estimate_ms) == (10, 7_200_000)
    assert (late.gang.queue, len(late.gang.tasks)) == ("teaching", 1)
    assert trace.node_events == (
        NodeEvent(12_000_000, "gpu-0", NodeChange.DOWN),
        NodeEvent(16_800_000, "gpu-0", NodeChange.UP),
    )


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "failures.json"
    path.write_text(json.dumps(yaml.safe_load(FAILURES.read_text())))  # noqa: TID251
    assert read_trace_file(path) == read_trace_file(FAILURES)
    assert is_trace_file(path)
    assert is_trace_file(FAILURES)


def test_a_job_without_a_duration_runs_for_ever(tmp_path: Path) -> None:
    trace, _ = read_trace_file(written(tmp_path, f"{NODES}jobs: [{{name: a, at: 5s}}]\n"))
    assert trace.arrivals[0].duration_ms is None
    assert trace.arrivals[0].gang.key == "default/a"
    assert trace.arrivals[0].gang.queue == "default"


def test_fields_that_are_wrong_are_told_with_their_lines(tmp_path: Path) -> None:
    text = (
        f"{NODES}jobs:\n"
        "- {name: good, at: 0s}\n"
        "- {name: late, at: soon}\n"
        "- {name: odd, at: 1s, duration: 5 parsecs}\n"
        "- {name: twins, at: 2s, colour: red, reqest: {cpu: 1}}\n"
        "nodeEvents:\n"
        "- {at: 1s, node: box, change: sideways}\n"
    )
    trace, problems = read_trace_file(written(tmp_path, text))
    assert [a.gang.name for a in trace.arrivals] == ["good", "twins"]
    assert [(p.where, p.path) for p in problems] == [
        ("t.yaml:6", "jobs[1].at"),
        ("t.yaml:7", "jobs[2].duration"),
        ("t.yaml:10", "nodeEvents[0].change"),
        ("t.yaml:8", "jobs[3].colour"),
        ("t.yaml:8", "jobs[3].reqest"),
    ]
    assert str(problems[3]).startswith(
        "t.yaml:8: jobs[3].colour: 'red' is the value of an unknown field; known fields are "
        "annotations, "
    )
    assert problems[3].message.startswith(
        "is the value of an unknown field; known fields are annotations, at, "
    )
    assert problems[4].message == "is the value of an unknown field; did you mean request?"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: []\njobs: [{name: a, at: 0s}]\n", "there is no node to replay"),
        (f"{NODES}jobs: []\n", "there is no job to replay"),
        (f"{NODES}jobs: [{{name: a, at: 0s, request: {{cpu: 9}}}}]\n", "can never start"),
        ("nodes: [\n", "t.yaml:"),
        ("---\na: 1\n", "a trace must be one document"),
    ],
)
def test_where_nothing_can_be_played_that_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InstanceError, match=told):
        read_trace_file(written(tmp_path, text))


def test_mistakes_have_the_names_and_forms_of_the_file(tmp_path: Path) -> None:
    jobs = """jobs:
- {name: a, at: 1h, duration: 1h}
- {name: wide, at: 1h, tasks: 9, request: {cpu: 4}}
- {name: b, at: 2h, duration: 1h}
- {name: late, at: 90m, duration: 1h}
- {name: c, at: 3h, duration: 1h}
- {name: d, at: 3h, duration: -1m}
"""
    _, problems = read_trace_file(written(tmp_path, NODES + jobs))
    told = [str(problem) for problem in problems]
    assert told[0].startswith("t.yaml:7: Gang default/b: at: 2h0m0s is out of order")
    assert told[1].startswith("t.yaml:6: Gang default/wide: minAvailable: 9 can never start")
    assert told[2].startswith(
        "t.yaml:10: Gang default/d: duration: -1m0s is below zero: write a dura"
    )
    assert len(told) == 3


@pytest.mark.parametrize(
    "kind",
    [
        "kind: Trace",
        "kind:  'Trace'",
        'kind: "Trace"  # ours',
        "kind: Trace\r",
        '{"apiVersion": "optsched.io/v1alpha1", "kind" : "Trace"}',
        "{kind: Trace, nodes: []}",
    ],
)
def test_a_trace_is_known_by_its_kind_however_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"apiVersion: optsched.io/v1alpha1\n{kind}\n")
    assert is_trace_file(path)
    path.write_text(f"{kind.replace('Trace', 'Traces')}\nmankind: Trace\n")
    assert not is_trace_file(path)


def test_another_kind_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\n")
    assert not is_trace_file(path)
    with pytest.raises(InstanceError, match="is v1 Pod: write apiVersion"):
        read_trace_file(path)


@pytest.mark.parametrize(
    "device", ["amd.com/gpu", "nvidia.com/mig-1g.5gb", "volcano.sh/vgpu-number", "rdma/hca"]
)
def test_a_job_that_asks_for_half_a_device_is_left_out(tmp_path: Path, device: str) -> None:
    nodes = f"nodes: [{{name: box, allocatable: {{cpu: 4, {device}: 1}}}}]\n"
    half = f"{{name: a, at: 0s, request: {{{device}: 0.5}}}}"
    text = f"{nodes}jobs: [{half}, {{name: b, at: 1s, request: {{cpu: 0.5}}}}]\n"
    trace, (problem,) = read_trace_file(written(tmp_path, text))
    assert [a.gang.key for a in trace.arrivals] == ["default/b"]
    assert str(problem).startswith(f"t.yaml:4: jobs[0].request[{device}]: 0.5 is no")


def test_a_job_that_asks_for_half_a_gpu_is_left_out(tmp_path: Path) -> None:
    gpus = "nodes: [{name: box, allocatable: {cpu: 4, nvidia.com/gpu: 1}}]\n"
    half = "{name: a, at: 0s, request: {nvidia.com/gpu: 500m}}"
    text = f"{gpus}jobs: [{half}, {{name: b, at: 1s}}]\n"
    trace, problems = read_trace_file(written(tmp_path, text))
    assert [a.gang.key for a in trace.arrivals] == ["default/b"]
    (problem,) = problems
    assert str(problem).startswith(
        "t.yaml:4: jobs[0].request[nvidia.com/gpu]: '500m' is not a whole number of GPUs"
    )


INVALID = {
    "jobs": [
        "{name: bad, at: 0s, tasks: 1.5}",
        "{name: bad, at: 0s, queue: [default]}",
        "{name: bad, at: 0s, priority: high}",
        "{name: bad, at: 0s, minAvailable: -1}",
        "{name: bad, at: 0s, estimate: soon}",
        "{name: bad, at: 0s, grace: 5}",
        "{name: bad, at: 0s, annotations: {a: 2}}",
        "{name: bad, at: 0s, nodeSelector: {a: 2}}",
        "{name: bad, at: 0s, request: cpu}",
        '{name: "", at: 0s}',
        "{name: bad}",
        "bad",
    ],
    "nodes": [
        "{name: bad, count: 1.5, allocatable: {cpu: 4}}",
        "{name: bad, allocatable: {cpu: four}}",
        "{name: bad, allocatable: {cpu: 4}, labels: {a: 2}}",
        '{name: "", allocatable: {cpu: 4}}',
        "7",
    ],
    "queues": ["{name: bad, dequeueStrategy: lifo}", "{name: bad, weight: 0.5}", '{name: ""}'],
    "nodeEvents": ['{at: 1s, node: "", change: down}', '{at: 1s, node: box, change: ""}'],
}


@pytest.mark.parametrize(
    ("part", "bad"), [(part, bad) for part, each in INVALID.items() for bad in each]
)
def test_an_object_with_an_invalid_field_is_reported_once_and_skipped(
    tmp_path: Path, part: str, bad: str
) -> None:
    """A default in place of an invalid value would be another study."""
    good = {
        "nodes": "{name: box, allocatable: {cpu: 4}}",
        "queues": "{name: q}",
        "jobs": "{name: a, at: 1s}",
        "nodeEvents": "{at: 2s, node: box, change: down}",
    }
    lists = {name: [bad, text] if name == part else [text] for name, text in good.items()}
    text = "".join(f"{name}: [{', '.join(each)}]\n" for name, each in lists.items())
    trace, problems = read_trace_file(written(tmp_path, text))
    assert len(problems) == 1, [str(p) for p in problems]
    assert str(problems[0]).startswith("t.yaml:")
    assert f"{part}[0]" in str(problems[0])
    without = "".join(f"{name}: [{each}]\n" for name, each in good.items())
    (tmp_path / "t.yaml").unlink()
    expected, _ = read_trace_file(written(tmp_path, without))
    assert (trace.nodes, trace.queues) == (expected.nodes, expected.queues)
    assert [a.gang for a in trace.arrivals] == [a.gang for a in expected.arrivals]
    assert [e.at_ms for e in trace.node_events] == [2000]


def test_queues_have_a_strategy(tmp_path: Path) -> None:
    queues = "queues: [{name: a, dequeueStrategy: fifo}, {name: b}]\n"
    trace, _ = read_trace_file(written(tmp_path, f"{NODES}{queues}jobs: [{{name: j, at: 0s}}]\n"))
    assert {q.name: q.is_fifo for q in trace.queues if q.name in "ab"} == {"a": True, "b": False}


def test_the_page_names_every_field() -> None:
    page = (FAILURES.parents[2] / "docs" / "simulate.md").read_text()
    for name, part in SCHEMA["properties"].items():
        assert f"`{name}`" in page
        for inner in part.get("items", {}).get("properties", {}):
            assert f"`{inner}`" in page
