"""Previews of files with values of wrong types: the file is read, and no value is a traceback."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from optsched.controllers.job.preview import preview_jobs
from optsched.formats.snapshots.instance_files import read_instance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTAINERS = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "4", "pods": "10"}},
}
OBJECTS: dict[str, dict[str, Any]] = {
    "pod": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "default",
            "annotations": {"volcano.sh/job-name": "other"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "other", "uid": "u"}],
        },
        "spec": {"schedulerName": "volcano", "containers": CONTAINERS},
    },
    "podgroup": {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "ownerReferences": [{"kind": "Job", "name": "other"}]},
        "spec": {"minMember": 1, "queue": "default"},
    },
    "job": {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": "j",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "b"},
            "annotations": {"a": "b"},
            "ownerReferences": [],
        },
        "spec": {
            "minAvailable": 1,
            "priorityClassName": "high",
            "plugins": {"svc": []},
            "tasks": [
                {
                    "name": "a",
                    "replicas": 1,
                    "template": {
                        "metadata": {"annotations": {"a": "b"}},
                        "spec": {"containers": CONTAINERS},
                    },
                }
            ],
        },
        "status": {"state": {"phase": "Pending"}},
    },
    "priorityclass": {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 3,
    },
}
WRONG: tuple[Any, ...] = (5, -0.5, True, None, "x", [1], [[]], {"a": 1}, {"": []})


def paths_of(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value below `value`."""
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, child in items:
        yield (key,)
        yield from ((key, *path) for path in paths_of(child))


def replaced(obj: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy of `obj` with another value at a path."""
    copied: Any = deepcopy(obj)
    parent = copied
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return dict(copied)


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_value_of_a_wrong_type_leaves_the_other_objects(kind: str, tmp_path: Path) -> None:
    others = [obj for name, obj in OBJECTS.items() if name != kind]
    for path in paths_of(OBJECTS[kind]):
        for value in WRONG:
            broken = replaced(OBJECTS[kind], path, value)
            file = tmp_path / "cluster.json"
            items = [NODE, *others, broken]
            file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
            read = read_instance(file, preview=preview_jobs)
            assert [node.name for node in read.snapshot.nodes] == ["n"], (path, value)
            gangs = {gang.name for gang in read.snapshot.gangs}
            expected = {"podgroup": "g", "job": "j"}
            missing = {name for of, name in expected.items() if of != kind} - gangs
            assert not missing, (path, value)


def test_a_mistake_in_a_job_is_reported_with_its_field(tmp_path: Path) -> None:
    broken = replaced(OBJECTS["job"], ("spec", "minAvailable"), [1])
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, broken]}))
    problems = [str(problem) for problem in read_instance(file, preview=preview_jobs).problems]
    assert len(problems) == 1
    assert "spec.minAvailable" in problems[0]


def test_a_container_that_is_no_mapping_is_a_mistake_in_the_job(tmp_path: Path) -> None:
    """Without an error, the pods of the job would lack the container."""
    containers = [7, {"name": "m", "image": "i"}]
    tasks = [{"name": "a", "replicas": 1, "template": {"spec": {"containers": containers}}}]
    broken = replaced(OBJECTS["job"], ("spec", "tasks"), tasks)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, broken]}))
    read = read_instance(file, preview=preview_jobs)
    (problem,) = map(str, read.problems)
    wanted = (
        "spec.tasks[0].template.spec.containers[0]: 7 is not a mapping of field names to values"
    )
    assert problem.endswith(wanted)
    assert read.snapshot.gangs == ()
