from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from optsched.api import kinds
from optsched.api.crds import (
    CUSTOM_KINDS,
    custom_resource_definition,
    job_spec_schema,
    schema_of,
    unknown_fields,
)
from optsched.api.hypernode import parse_hypernode, parse_nodeshard, parse_numatopology
from optsched.api.job import parse_job
from optsched.api.jobflow import parse_cronjob, parse_jobflow, parse_jobtemplate
from optsched.api.podgroup import parse_podgroup
from optsched.api.queue import parse_queue
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.api.fields import Schema
    from optsched.api.kinds import Kind

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "deploy" / "crds"
PARSE: dict[Kind, Callable[[object], tuple[Any, tuple[Any, ...]]]] = {
    kinds.QUEUE: parse_queue,
    kinds.POD_GROUP: parse_podgroup,
    kinds.HYPER_NODE: parse_hypernode,
    kinds.NUMATOPOLOGY: parse_numatopology,
    kinds.NODE_SHARD: parse_nodeshard,
    kinds.JOB: parse_job,
    kinds.CRON_JOB: parse_cronjob,
    kinds.JOB_FLOW: parse_jobflow,
    kinds.JOB_TEMPLATE: parse_jobtemplate,
}
KEPT = "x-kubernetes-preserve-unknown-fields"
JSON_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}

every_kind = pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=str)
every_kind_that_is_read = pytest.mark.parametrize("kind", PARSE, ids=str)


def version_of(kind: Kind) -> dict[str, Any]:
    (version,) = custom_resource_definition(kind)["spec"]["versions"]
    return version


def violations(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield the errors that an API server would report, for the keywords that the schemas use."""
    if schema.get("x-kubernetes-int-or-string"):
        kind_fits = isinstance(value, int | str) and not isinstance(value, bool)
    else:
        kind_fits = type(value) is JSON_TYPES[schema["type"]]
    if not kind_fits:
        yield f"{path}: wrong type"
        return
    yield from (f"{path}: {problem}" for problem in scalar_problems(schema, value))
    if isinstance(value, dict):
        yield from (
            f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value
        )
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is not None:
                yield from violations(inner, part, f"{path}.{name}")
            elif "properties" in schema and not schema.get(KEPT):
                yield f"{path}.{name}: unknown"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{path}: too few"
        for position, part in enumerate(value):
            yield from violations(schema["items"], part, f"{path}[{position}]")


def scalar_problems(schema: Schema, value: Any) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield "not in the enumeration"
    if isinstance(value, int) and not in_range(schema, value):
        yield "out of range"
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            yield "too long"
        if len(value) < schema.get("minLength", 0):
            yield "too short"
        if re.search(schema.get("pattern", ""), value) is None:
            yield "does not match"


def in_range(schema: Schema, number: int) -> bool:
    return schema.get("minimum", number) <= number <= schema.get("maximum", number)


def without_nulls(value: Any) -> Any:
    """Return a value after the server has pruned its nulls."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def with_defaults(schema: Schema, value: Any) -> Any:
    if isinstance(value, list):
        return [with_defaults(schema["items"], part) for part in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    defaults = {name: inner["default"] for name, inner in fields.items() if "default" in inner}
    return defaults | {
        name: with_defaults(fields.get(name, {}), part) for name, part in value.items()
    }


def field_schemas(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from field_schemas(inner, f"{path}.{name}")
    for keyword in ("additionalProperties", "items"):
        if keyword in schema:
            yield from field_schemas(schema[keyword], f"{path}[]")


class Spy(dict[str, Any]):
    """A mapping that records which of its fields are read."""

    def __init__(self, fields: dict[str, Any], path: str, seen: set[str]) -> None:
        super().__init__(fields)
        self.path, self.seen = path, seen

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(f"{self.path}.{name}")
        return super().get(name, default)


def example(schema: Schema, path: str, seen: set[str]) -> Any:
    """Return a value with every field of a schema; it records the fields that are read."""
    if "properties" in schema:
        fields = schema["properties"].items()
        return Spy(
            {name: example(inner, f"{path}.{name}", seen) for name, inner in fields}, path, seen
        )
    if "additionalProperties" in schema:
        return {"x": example(schema["additionalProperties"], f"{path}[]", seen)}
    if schema.get("type") == "array":
        return [example(schema["items"], f"{path}[]", seen)]
    if schema.get("format") == "date-time":
        return "2026-11-21T05:38:00Z"
    scalars = {"string": schema.get("enum", ["a"])[-1], "integer": 1, "boolean": True}
    return scalars.get(schema.get("type", ""), {} if schema.get("type") == "object" else "1")


def test_what_holds_the_spec_of_a_job_agrees_with_jobs():
    job = job_spec_schema()["properties"]
    template = schema_of(kinds.JOB_TEMPLATE)["properties"]["spec"]["properties"]
    made = schema_of(kinds.CRON_JOB)["properties"]["spec"]["properties"]["jobTemplate"]
    assert template == job
    assert made["properties"]["spec"]["properties"] == job


def test_there_is_no_other_manifest():
    names = {path.name for path in CRDS.glob("*.yaml")}
    assert names == {f"{kind.group}_{kind.plural}.yaml" for kind in CUSTOM_KINDS}


@every_kind_that_is_read
def test_every_field_is_read_and_every_field_read_exists(kind: Kind):
    seen: set[str] = set()
    obj = example(schema_of(kind), "", seen)
    obj["metadata"] = {"name": "a"}
    found, _ = PARSE[kind](obj)
    assert found is not None
    assert seen == {path for path, _ in field_schemas(schema_of(kind))} - {".apiVersion", ".kind"}


@every_kind
def test_every_field_has_one_sentence(kind: Kind):
    descriptions = {
        path: inner.get("description", "") for path, inner in field_schemas(schema_of(kind))
    }
    assert descriptions.pop(".metadata") == ""
    wrong = {p: d for p, d in descriptions.items() if not re.fullmatch(r"[A-Z][^.]{8,}\.", d)}
    assert wrong == {}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (kinds.QUEUE, {}),
        (kinds.QUEUE, {"affinity": {}, "guarantee": {}, "extendClusters": [{}]}),
        (kinds.POD_GROUP, {}),
        (kinds.POD_GROUP, {"networkTopology": {}, "subGroupPolicy": [{"networkTopology": {}}]}),
        (kinds.JOB, {"tasks": [{"replicas": 2}], "networkTopology": {}}),
    ],
)
def test_defaults_of_the_server_and_of_the_parser_agree(kind: Kind, spec: dict[str, Any]):
    obj = {"metadata": {"name": "a"}, "spec": spec, "status": {}}
    defaulted = with_defaults(schema_of(kind), obj)
    assert defaulted["spec"].keys() > spec.keys()
    assert PARSE[kind](obj) == PARSE[kind](defaulted)


def test_the_defaults_are_volcanos():
    assert with_defaults(schema_of(kinds.QUEUE), {"spec": {}})["spec"] == {
        "weight": 1,
        "reclaimable": True,
        "dequeueStrategy": "traverse",
    }
    rule = {"networkTopology": {}}
    spec = with_defaults(schema_of(kinds.POD_GROUP), {"spec": {"subGroupPolicy": [rule]}})["spec"]
    assert spec["queue"] == "default"
    assert spec["subGroupPolicy"] == [
        {"subGroupSize": 1, "minSubGroups": 0, "networkTopology": {"mode": "hard"}}
    ]
    job = with_defaults(schema_of(kinds.JOB), {"spec": {"tasks": [{"partitionPolicy": {}}]}})
    assert job["spec"] == {
        "queue": "default",
        "maxRetry": 3,
        "tasks": [{"partitionPolicy": {"minPartitions": 0}}],
    }
    cron = with_defaults(schema_of(kinds.CRON_JOB), {"spec": {}})["spec"]
    assert cron == {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    }


NODE_MEMBER = {"type": "Node", "selector": {"exactMatch": {"name": "n1"}}}
BAD = [
    (kinds.QUEUE, {"weight": 65536}, ".spec.weight: out of range"),
    (kinds.QUEUE, {"weight": 0}, ".spec.weight: out of range"),
    (kinds.QUEUE, {"weight": "4"}, ".spec.weight: wrong type"),
    (kinds.QUEUE, {"priority": -1}, ".spec.priority: out of range"),
    (kinds.QUEUE, {"parent": "A_b"}, ".spec.parent: does not match"),
    (kinds.QUEUE, {"parent": "a" * 254}, ".spec.parent: too long"),
    (kinds.QUEUE, {"type": "a" * 254}, ".spec.type: too long"),
    (kinds.QUEUE, {"dequeueStrategy": "lifo"}, ".spec.dequeueStrategy: not in the enumeration"),
    (kinds.QUEUE, {"capability": {"cpu": "1 Gi"}}, ".spec.capability.cpu: does not match"),
    (kinds.QUEUE, {"capability": {"cpu": 1.5}}, ".spec.capability.cpu: wrong type"),
    (kinds.QUEUE, {"capabilty": {}}, ".spec.capabilty: unknown"),
    (kinds.POD_GROUP, {"minMember": -1}, ".spec.minMember: out of range"),
    (kinds.POD_GROUP, {"queue": "Team"}, ".spec.queue: does not match"),
    (
        kinds.POD_GROUP,
        {"subGroupPolicy": [{"subGroupSize": 0}]},
        ".spec.subGroupPolicy[0].subGroupSize: out of range",
    ),
    (
        kinds.POD_GROUP,
        {"networkTopology": {"mode": "firm"}},
        ".spec.networkTopology.mode: not in the enumeration",
    ),
    (kinds.HYPER_NODE, {"members": [NODE_MEMBER]}, ".spec: tier is missing"),
    (kinds.HYPER_NODE, {"tier": -1, "members": [NODE_MEMBER]}, ".spec.tier: out of range"),
    (kinds.HYPER_NODE, {"tier": 1, "members": []}, ".spec.members: too few"),
    (
        kinds.HYPER_NODE,
        {"tier": 1, "members": [{"type": "Rack"}]},
        ".spec.members[0].type: not in the enumeration",
    ),
    (
        kinds.HYPER_NODE,
        {"tier": 1, "members": [{"type": "Node", "selector": {"regexMatch": {"pattern": ""}}}]},
        ".spec.members[0].selector.regexMatch.pattern: too short",
    ),
    (
        kinds.NUMATOPOLOGY,
        {"cpuDetail": {"0": {"numa": -1}}},
        ".spec.cpuDetail.0.numa: out of range",
    ),
    (kinds.JOB, {"tasks": []}, ".spec.tasks: too few"),
    (kinds.JOB, {"minAvailable": -1}, ".spec.minAvailable: out of range"),
    (kinds.JOB, {"maxRetry": -1}, ".spec.maxRetry: out of range"),
    (kinds.JOB, {"minSuccess": 0}, ".spec.minSuccess: out of range"),
    (kinds.JOB, {"ttlSecondsAfterFinished": -1}, ".spec.ttlSecondsAfterFinished: out of range"),
    (kinds.JOB, {"queue": "Team"}, ".spec.queue: does not match"),
    (kinds.JOB, {"tasks": [{"name": "A"}]}, ".spec.tasks[0].name: does not match"),
    (kinds.JOB, {"tasks": [{"replicas": "3"}]}, ".spec.tasks[0].replicas: wrong type"),
    (kinds.JOB, {"tasks": [{"maxRetry": -2}]}, ".spec.tasks[0].maxRetry: out of range"),
    (
        kinds.JOB,
        {"policies": [{"event": "PodLost"}]},
        ".spec.policies[0].event: not in the enumeration",
    ),
    (
        kinds.JOB,
        {"policies": [{"action": "SyncJob"}]},
        ".spec.policies[0].action: not in the enumeration",
    ),
    (kinds.JOB, {"volumes": [{"mountPath": "a:b"}]}, ".spec.volumes[0].mountPath: does not match"),
    (kinds.JOB, {"volumes": [{}]}, ".spec.volumes[0]: mountPath is missing"),
    (kinds.CRON_JOB, {"schedule": "* * * * *"}, ".spec: jobTemplate is missing"),
    (
        kinds.CRON_JOB,
        {"schedule": "@daily", "jobTemplate": {}, "concurrencyPolicy": "Queue"},
        ".spec.concurrencyPolicy: not in the enumeration",
    ),
    (kinds.JOB_FLOW, {"flows": [{"name": ""}]}, ".spec.flows[0].name: too short"),
    (
        kinds.COLOCATION_CONFIGURATION,
        {"memoryQos": {"highRatio": 101}},
        ".spec.memoryQos.highRatio: out of range",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "violation"), BAD)
def test_the_schema_refuses_what_volcanos_refuses(kind: Kind, spec: dict[str, Any], violation: str):
    assert list(violations(schema_of(kind), {"spec": spec})) == [violation]


def shared_objects() -> list[Any]:
    folders = ("crater", "seeds", "volcano")
    found = []
    for path in (p for name in folders for p in found_in_shared(f"manifests/{name}/**/*.yaml")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^apiVersion: .*volcano.sh/", text, re.MULTILINE):
            continue
        for obj in filter(None, yaml.load_all(text, Loader=yaml.SafeLoader)):
            kind = kinds.find_kind(obj["apiVersion"], obj["kind"])
            if kind in PARSE:
                found.append(pytest.param(kind, obj, id=f"{path.stem}-{obj['metadata']['name']}"))
    return found


def test_the_shared_manifests_are_there():
    shared("manifests")
    found = [each.values[0] for each in shared_objects()]
    assert {kinds.QUEUE, kinds.JOB, kinds.CRON_JOB, kinds.JOB_FLOW, kinds.JOB_TEMPLATE} <= set(
        found
    )
    assert len(found) >= 60


@pytest.mark.parametrize(("kind", "obj"), shared_objects())
def test_manifests_of_users_pass_the_schema_and_the_parser(kind: Kind, obj: Any):
    assert list(violations(schema_of(kind), without_nulls(obj))) == []
    assert unknown_fields(kind, obj) == ()
    found, errors = PARSE[kind](obj)
    assert found is not None
    assert errors == ()


@every_kind
def test_names_and_subresources_are_volcanos(kind: Kind):
    spec = custom_resource_definition(kind)["spec"]
    expected = {
        kinds.QUEUE: ("Cluster", ["q", "queue-v1beta1"], {"status": {}}),
        kinds.POD_GROUP: ("Namespaced", ["pg", "podgroup-v1beta1"], {}),
        kinds.HYPER_NODE: ("Cluster", ["hn"], {"status": {}}),
        kinds.NUMATOPOLOGY: ("Cluster", ["numatopo"], {}),
        kinds.NODE_SHARD: ("Cluster", ["nsh"], {"status": {}}),
        kinds.JOB: ("Namespaced", ["vcjob", "vj"], {"status": {}}),
        kinds.CRON_JOB: ("Namespaced", ["cronvcjob", "cronvj"], {"status": {}}),
        kinds.COMMAND: ("Namespaced", [], {}),
        kinds.JOB_FLOW: ("Namespaced", ["jf"], {"status": {}}),
        kinds.JOB_TEMPLATE: ("Namespaced", ["jt"], {"status": {}}),
        kinds.COLOCATION_CONFIGURATION: ("Namespaced", [], {"status": {}}),
    }
    subresources = spec["versions"][0]["subresources"]
    assert (spec["scope"], spec["names"].get("shortNames", []), subresources) == expected[kind]
    assert spec["names"]["categories"] == ["volcano"]
    version = "v1beta1" if kind.group == kinds.SCHEDULING_GROUP else "v1alpha1"
    assert spec["versions"][0]["name"] == version


def test_the_columns_answer_the_first_questions():
    columns = {
        kind: [
            (column["name"], column.get("priority", 0))
            for column in custom_resource_definition(kind)["spec"]["versions"][0].get(
                "additionalPrinterColumns", []
            )
        ]
        for kind in CUSTOM_KINDS
    }
    queue = dict(columns[kinds.QUEUE])
    shown = {name for name, priority in queue.items() if not priority}
    assert {"STATE", "WEIGHT", "PARENT", "RUNNING", "PENDING", "AGE"} <= shown
    assert {
        f"{r}-{what}" for r in ("CPU", "GPU") for what in ("ALLOCATED", "DESERVED", "CAPABILITY")
    } <= shown
    assert [name for name, priority in columns[kinds.JOB] if not priority] == [
        "STATUS",
        "minAvailable",
        "RUNNINGS",
        "AGE",
        "QUEUE",
        "REASON",
    ]
    assert [name for name, _ in columns[kinds.JOB_FLOW]] == ["Status", "Age"]
    assert columns[kinds.POD_GROUP] == [
        ("STATUS", 0),
        ("minMember", 0),
        ("RUNNINGS", 0),
        ("AGE", 0),
        ("QUEUE", 1),
        ("REASON", 0),
    ]
    assert [name for name, _ in columns[kinds.HYPER_NODE]] == [
        "Tier",
        "TierName",
        "NodeCount",
        "Age",
    ]
