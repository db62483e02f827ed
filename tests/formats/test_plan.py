from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Enqueue,
    Evict,
    LevelResult,
    LevelStatus,
    Nominate,
    Plan,
    QueueShare,
    Sense,
)
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.formats.plan import (
    PlanDocument,
    encode_plan,
    parse_plan,
    plan_document,
    published_schema,
    read_plan,
    restore_plan,
    write_plan,
)
from tests.support.small import cluster, gang, node, running, shape

ROOT = Path(__file__).parents[2]
SCHEMA = published_schema("Plan")
PAGE = ROOT / "docs" / "plan.md"

CERTIFICATE = Certificate(
    levels=(
        LevelResult("admitted gangs", "GPUs", Sense.MAX, 12, 12, LevelStatus.OPTIMAL),
        LevelResult("victims", "pods", Sense.MIN, 1, None, LevelStatus.FEASIBLE),
    ),
    engine="configurations",
    seconds=0.25,
    stopped="the time is up",
    relaxed=("spread",),
    shares=(QueueShare("team", 250_000, 300_000),),
)
EXAMPLE = Plan(
    actions=(
        Enqueue("ml/next"),
        Evict("dev/notebook-0", "node-7", "reclaim", "ml/train"),
        Allocate("ml/train-0", "node-3", "ml/train"),
        Allocate("ml/train-1", "node-3", "ml/train"),
        Nominate("ml/train-2", "node-7", "ml/train"),
    ),
    certificate=CERTIFICATE,
    pending={
        "ml/train": Reason(
            ReasonCode.WAITING, "capacity is reserved for it on nodes with terminating pods"
        ),
        "ml/wide": Reason(ReasonCode.RESOURCES, "16 nvidia.com/gpu are requested, 4 are idle"),
    },
    pending_tasks={
        "ml/train-9": Reason(
            ReasonCode.INVALID_POD,
            "spec.nodeSelector[zone]: 1 is not a string: write it in quotes",
        )
    },
)


def told(obj: Any) -> list[str]:
    document, errors = parse_plan(obj)
    assert (document is None) is bool(errors)
    return [str(error) for error in errors]


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the example with another value at a path; None removes a key."""
    whole = copy.deepcopy(encode_plan(plan_document(EXAMPLE)))
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    part: Any = whole
    for step in way:
        part = part[step]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return whole


# --- there and back ------------------------------------------------------------------------------


def test_what_is_written_is_read_again():
    document, errors = read_plan(write_plan(EXAMPLE))
    assert errors == ()
    assert document == plan_document(EXAMPLE)


def test_the_file_is_stable_and_its_keys_are_in_order():
    written = write_plan(EXAMPLE)
    backwards = Plan(tuple(reversed(EXAMPLE.actions)), CERTIFICATE, EXAMPLE.pending, {})
    assert list(json.loads(written)) == sorted(json.loads(written))
    assert json.loads(write_plan(backwards))["binds"] == json.loads(written)["binds"]
    assert list(json.loads(write_plan(backwards))["binds"]) == ["ml/train-0", "ml/train-1"]
    assert write_plan(EXAMPLE) == written


texts = st.text(max_size=6)
keys = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")).map("/".join)
reasons = st.dictionaries(keys, st.builds(Reason, st.sampled_from(list(ReasonCode)), texts))
numbers = st.integers(-(2**62), 2**62)
levels = st.builds(
    LevelResult,
    texts,
    texts,
    st.sampled_from(list(Sense)),
    numbers,
    st.none() | numbers,
    st.sampled_from(list(LevelStatus)),
)
grants = st.builds(
    DeviceGrant,
    keys,
    st.lists(st.tuples(texts, st.builds(DeviceId, texts, texts, texts)), max_size=2).map(tuple),
)
actions = st.lists(
    st.builds(
        Allocate,
        keys,
        texts,
        keys,
        st.lists(st.builds(GpuShare, texts, numbers, numbers, numbers), max_size=2).map(tuple),
        st.lists(grants, max_size=2, unique_by=lambda grant: grant.claim).map(tuple),
    )
    | st.builds(Nominate, keys, texts, keys)
    | st.builds(Enqueue, keys)
    | st.builds(Evict, keys, texts, texts, keys),
    max_size=6,
)
certificates = st.builds(
    Certificate,
    st.lists(levels, max_size=3).map(tuple),
    texts,
    st.floats(0, 1e6),
    texts,
    st.lists(texts, max_size=2).map(tuple),
)


@given(st.builds(Plan, actions.map(tuple), certificates, reasons, reasons))
def test_every_plan_survives(plan: Plan):
    document, errors = read_plan(write_plan(plan))
    assert errors == ()
    assert document == plan_document(plan)
    assert check(json.loads(write_plan(plan)), SCHEMA) == []


CARDS = (GpuShare("GPU-a", 8000, 50, 1), GpuShare("0", 16384))
GRANTS = (
    DeviceGrant("ns/c", (("gpu", DeviceId("d", "p", "0")), ("nic", DeviceId("d", "p", "1")))),
    DeviceGrant("ns/d"),
)


CELLS = (NumaPart(0, 4), NumaPart(1, 2, 1))


def test_parts_of_nodes_come_back_with_their_pod():
    snapshot = cluster([node("n", 4)], [gang("g", ("w", 2, shape(1)))])
    first = Allocate("ns/g-w-0", "n", "ns/g", CARDS, GRANTS, CELLS)
    plan = Plan((first, Allocate("ns/g-w-1", "n", "ns/g")), CERTIFICATE)
    document, errors = read_plan(write_plan(plan))
    assert errors == ()
    assert document is not None
    assert document.devices == {"ns/g-w-0": GRANTS[:1]}
    restored, errors = restore_plan(document, snapshot)
    assert errors == ()
    assert restored.actions == (replace(first, devices=GRANTS[:1]), plan.actions[1])


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("cards", [], "cards"),
        ("cards", {"g": []}, "cards[g]"),
        ("cards", {"a/b": 3}, "cards[a/b].parts"),
        (
            "cards",
            {"a/b": [{"gpu": "x", "memory": "1", "cores": 0, "container": 0}]},
            "memory",
        ),
        ("devices", {"a/b": [{"claim": "c"}]}, "devices[a/b].parts[0].claim"),
        ("numa", {"a/b": [{"node": 0, "cpus": "4", "gpus": 0}]}, "numa[a/b].parts[0].cpus"),
        ("devices", {"a/b": [{"claim": "n/c"}]}, "devices[a/b].parts[0].driver"),
    ],
)
def test_parts_without_a_reading_are_named(field: str, value: Any, path: str):
    whole = {**encode_plan(plan_document(EXAMPLE)), field: value}
    assert any(path in line for line in told(whole))


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "apiVersion",
            "optsched.io/v2",
            'apiVersion: "optsched.io/v2" is not one of optsched.io/v1alpha1',
        ),
        ("kind", None, "kind is missing and has no default"),
        ("binds", [], "binds: [] is not a mapping of names to values"),
        ("binds.ml/train-0", 7, "binds[ml/train-0]: 7 is not a string: write it in quotes"),
        (
            "binds.train-0",
            "node-1",
            'binds[train-0]: "train-0" is not the key of a pod or PodGroup: write namespace/name',
        ),
        ("evictions.0.action", None, "evictions[0].action is missing and has no default"),
        (
            "evictions.0.for",
            "train",
            'evictions[0].for: "train" is not the key of a pod or PodGroup: write namespace/name',
        ),
        (
            "pending.ml/wide.code",
            "Bored",
            'pending[ml/wide].code: "Bored" is not one of RefusedByAPIServer',
        ),
        ("certificate", None, "certificate is missing and has no default"),
        (
            "certificate.seconds",
            "1s",
            'certificate.seconds: "1s" is not a number of seconds: write',
        ),
        ("certificate.seconds", -1, "certificate.seconds: -1 is not a number of seconds: write 0"),
        ("certificate.levels.0.value", 1.5, "certificate.levels[0].value: 1.5 is not a whole numb"),
        ("certificate.levels.1.sense", "up", 'certificate.levels[1].sense: "up" is not one of max'),
        (
            "certificate.proved",
            True,
            "certificate.proved: true contradicts the levels: write false for these",
        ),
    ],
)
def test_what_is_no_plan_is_told(path: str, value: Any, message: str):
    obj = changed(path, value)
    assert len(told(obj)) == 1
    assert told(obj)[0].startswith(message)


def test_all_errors_are_told_at_once():
    obj = changed("certificate.levels.0.status", "GOOD")
    obj["binds"]["x"] = 3
    obj["kind"] = "Map"
    assert [e.path for e in parse_plan(obj)[1]] == [
        "kind",
        "certificate.levels[0].status",
        "binds[x]",
    ]


def test_what_is_no_json_is_told():
    document, errors = read_plan("{")
    assert document is None
    assert errors[0].message == (
        "is not JSON: line 1, column 2: a name in double quotes is expected"
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists))
def test_nothing_that_json_can_hold_raises(value: Any):
    assert told(value)
    for name in SCHEMA["properties"]:
        assert isinstance(told({name: value}), list)


# --- back to a plan ------------------------------------------------------------------------------


def test_a_plan_is_restored_for_its_snapshot():
    waits = gang("train", ("w", 2, shape()))
    old = gang("old", ("w", 1, shape()))
    old = replace(old, tasks=(running(old.tasks[0], "n1"),))
    snapshot = cluster([node("n1")], [waits, old])
    made = Plan(
        actions=(
            Enqueue("ns/train"),
            Evict("ns/old-w-0", "n1", "consolidation", "ns/train", to="n1"),
            Allocate("ns/train-w-0", "n1", "ns/train"),
            Nominate("ns/train-w-1", "n1", "ns/train"),
        ),
        certificate=CERTIFICATE,
    )
    assert restore_plan(plan_document(made), snapshot) == (made, ())


def test_a_plan_for_another_snapshot_is_told():
    document = plan_document(EXAMPLE)
    plan, errors = restore_plan(document, cluster([node("n1")], []))
    assert plan.binds == {}
    assert [e.path for e in errors] == [
        "evictions[0].pod",
        "binds[ml/train-0]",
        "binds[ml/train-1]",
        "nominations[ml/train-2]",
    ]


# --- what is published ---------------------------------------------------------------------------

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def check(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths at which a value violates a schema.

    The check covers the part of JSON Schema that the project uses.
    """
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    is_flag = isinstance(value, bool)
    fits = [k for k in kinds if isinstance(value, TYPES[k]) and (not is_flag or k == "boolean")]
    if not fits or ("enum" in schema and value not in schema["enum"]):
        return [path]
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return [path]
    least, most = schema.get("minimum"), schema.get("maximum")
    if value is not None and not (least is None or value >= least):
        return [path]
    if value is not None and not (most is None or value <= most):
        return [path]
    found = [f"{path}.{name}" for name in schema.get("required", ()) if name not in value]
    if isinstance(value, list):
        for i, item in enumerate(value):
            found += check(item, schema["items"], f"{path}[{i}]")
    if isinstance(value, dict):
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            pattern = schema.get("propertyNames", {}).get("pattern", "")
            found += [] if re.search(pattern, name) else [f"{path}.{name}"]
            found += check(part, inner, f"{path}.{name}") if inner else []
    return found


def test_the_schema_lists_what_the_code_knows():
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "optsched.io/v1alpha1 Plan"
    fields = SCHEMA["properties"]
    level = fields["certificate"]["properties"]["levels"]["items"]["properties"]
    for name in ("pending", "pendingPods"):
        code = fields[name]["additionalProperties"]["properties"]["code"]
        assert code["enum"] == [each.value for each in ReasonCode]
    assert level["sense"]["enum"] == [each.value for each in Sense]
    assert level["status"]["enum"] == [each.value for each in LevelStatus]


def test_the_example_fits_the_schema():
    assert check(json.loads(write_plan(EXAMPLE)), SCHEMA) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kind", "Map"),
        ("binds", None),
        ("binds.x", "n"),
        ("evictions.0.pod", 3),
        ("pending.ml/wide.code", "Bored"),
        ("certificate.seconds", -1),
        ("certificate.levels.0.value", "1"),
        ("certificate.levels.0.value", 2**63),
        ("certificate.levels.0.unit", None),
        ("certificate.proved", "no"),
    ],
)
def test_schema_and_reader_refuse_the_same(path: str, value: Any):
    obj = changed(path, value)
    assert told(obj)
    assert check(obj, SCHEMA)


def test_the_page_shows_what_the_code_writes():
    shown = re.search(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == write_plan(EXAMPLE)


def test_the_page_names_every_field():
    page = PAGE.read_text(encoding="utf-8")
    certificate = SCHEMA["properties"]["certificate"]["properties"]
    level = certificate["levels"]["items"]["properties"]
    for name in (*SCHEMA["properties"], *certificate, *level):
        assert f"`{name}`" in page, name


def test_a_document_may_be_made_by_hand():
    document = PlanDocument(CERTIFICATE, binds={"a/x": "n"})
    assert parse_plan(encode_plan(document)) == (document, ())
