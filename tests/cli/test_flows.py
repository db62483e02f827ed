"""Tests of `optsched jobflow` and `optsched jobtemplate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import JOB_FLOW, JOB_TEMPLATE
from tests.cli.clusters import CONTEXT, FakeCluster, answer, optsched, values

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.api.kinds import Kind

KINDS = (JOB_FLOW, JOB_TEMPLATE)
FLOW = """\
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: one}
spec:
  flows: [{name: a}, {name: b, dependsOn: {targets: [a]}}]
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: two, namespace: own}
spec:
  flows: [{name: a}]
"""


def obj(kind: Kind, name: str, namespace: str = CONTEXT, **status: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
    spec = {"flows": [{"name": "a"}]} if kind == JOB_FLOW else {"queue": "ml", "tasks": []}
    return {**head, "spec": spec, "status": status}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "flows.yaml"
    file.write_text(FLOW)
    return file


def test_create_makes_all_of_a_file_and_tells_what_it_could_not(
    cluster: FakeCluster, path: Path
) -> None:
    cluster.put(obj(JOB_FLOW, "one"))
    result = optsched("jobflow", "create", "-f", path)
    assert result.stdout == "Created JobFlow: own/two\n"
    assert result.exit_code == 4
    assert result.stderr == f"Error: jobflow one exists already in namespace {CONTEXT}\n"


def test_delete_by_file_and_by_name(cluster: FakeCluster, path: Path) -> None:
    assert optsched("jobflow", "create", "-f", path).exit_code == 0
    assert optsched("jobflow", "delete", "-f", path).stdout == (
        f"Deleted JobFlow: {CONTEXT}/one\nDeleted JobFlow: own/two\n"
    )
    for spelt in (("a",), ("-N", "a"), ("-n", "a")):
        cluster.put(obj(JOB_TEMPLATE, "a"))
        result = optsched("jobtemplate", "delete", *spelt)
        assert result.stdout == f"Deleted JobTemplate: {CONTEXT}/a\n"
    assert cluster.objects == {}
    assert optsched("jobtemplate", "delete", "a").exit_code == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_are_those_of_vcctl(cluster: FakeCluster, kind: Kind) -> None:
    cluster.put(obj(kind, "a", state={"phase": "Running"}))
    cluster.put(obj(kind, "b", "other"))
    more = ["Phase", "Age"] if kind == JOB_FLOW else []
    listed = optsched(kind.singular, "list").stdout.splitlines()
    assert listed[0].split() == ["Name", "Namespace", *more]
    seen = listed[1].split()[: 3 if more else 2]
    assert seen == ["a", CONTEXT, *(["Running"] if more else [])]
    assert len(listed) == 2
    assert optsched(kind.singular, "get", "-n", "a").stdout.splitlines() == listed
    names = [line.split()[0] for line in optsched(kind.singular, "list", "-A").stdout.splitlines()]
    assert names == ["Name", "a", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_describe_shows_one_or_all_as_stored(cluster: FakeCluster, kind: Kind) -> None:
    for name in ("a", "b"):
        cluster.put(obj(kind, name, "other"))
    one = optsched(kind.singular, "describe", "-N", "a", "-n", "other")
    assert values(one.stdout)[0]["metadata"]["name"] == "a"
    assert answer(optsched(kind.singular, "describe", "b", "-n", "other", "-o", "json"))["spec"]
    all_ = optsched(kind.singular, "describe", "-n", "other").stdout
    assert [values(part)[0]["kind"] for part in all_.split("-" * 33)] == [kind.kind] * 2


def test_what_is_wrong_in_a_file_has_its_line(cluster: FakeCluster, path: Path) -> None:
    path.write_text(FLOW.replace("flows: [{name: a}]", "flows: [{name: 7}]"))
    result = optsched("jobflow", "create", "-f", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {path}:11: JobFlow two: spec.flows[0].name: 7 ")
    result = optsched("jobtemplate", "create", "-f", path)
    assert f'{path}:2: kind: "JobFlow" is not expected here: write JobTemplate' in result.stderr
    assert cluster.writes == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("delete",), "a name is missing: write it after the command, or give -f FILE"),
        (("get",), "a name is missing"),
        (("delete", "a", "-f", "x"), "give a file or a name, not both x and a"),
        (("create",), "the option -f / --filename / --file is missing"),
    ],
)
def test_wrong_usage_ends_with_2(
    cluster: FakeCluster, arguments: tuple[str, ...], sentence: str
) -> None:
    result = optsched("jobflow", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert cluster.calls == []


def test_no_objects_are_described_as_none(cluster: FakeCluster) -> None:
    result = optsched("jobflow", "describe")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No resources found\n"
