"""A snapshot of a cluster leads to the same result as the manifests of that cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.formats.plan import read_plan
from optsched.formats.snapshots.instance_files import read_instance
from optsched.local.kubectl import manifest_list, node_manifest
from tests.formats.objects import group, pod, queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.formats.plan import PlanDocument
    from optsched.local.plane import ControlPlane

pytestmark = pytest.mark.e2e

NAME = "snapshot-test"
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def member(gang: str, index: int, cpus: int) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "env": [{"name": "PASSWORD", "value": "hunter2"}]}
    spec = {
        "schedulerName": NAME,
        "nodeSelector": {"site": NAME},
        "containers": [{**container, "resources": {"requests": {"cpu": str(cpus)}}}],
    }
    mark = {"scheduling.k8s.io/group-name": gang}
    return pod(f"{gang}-{index}", spec, namespace=NAME, annotations=mark)


def gang(name: str, size: int, cpus: int, of: str = NAME) -> list[dict[str, Any]]:
    whole = group(name, {"minMember": size, "queue": of}, namespace=NAME)
    return [whole, *(member(name, i, cpus) for i in range(size))]


NODES = [node_manifest(f"{NAME}-{i}", cpu="4", labels={"site": NAME}) for i in range(3)]
MANIFESTS = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}},
    *NODES,
    queue(NAME, weight=2),
    queue(f"{NAME}-small", weight=1, capability={"cpu": "1"}),
    *gang("fits", 3, 3),
    *gang("limited", 2, 1, of=f"{NAME}-small"),
    *gang("huge", 2, 4),
]


@pytest.fixture(scope="module")
def filled(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield the control plane with the objects of the manifests."""
    kubectl = control_plane.kubectl
    kubectl.apply(manifest_list(MANIFESTS))
    names = [f"node/{node['metadata']['name']}" for node in NODES]
    kubectl("wait", "--for=condition=Ready", "--timeout=30s", *names)
    yield control_plane
    kubectl("delete", "namespace", NAME, "--wait=false")
    kubectl("delete", *names)
    kubectl("delete", "queues", NAME, f"{NAME}-small")


def optsched(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def solved(instance: Path, folder: Path) -> PlanDocument:
    out = folder / "plan.json"
    optsched("solve", instance, "--deterministic", "--scheduler-name", NAME, "--out", out)
    plan, errors = read_plan(out.read_text())
    assert errors == ()
    assert plan is not None
    return plan


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_snapshot_is_decided_as_the_manifests_are(
    filled: ControlPlane, tmp_path: Path, suffix: str
) -> None:
    taken = tmp_path / f"taken.{suffix}"
    optsched("snapshot", "--kubeconfig", filled.kubeconfig, "--out", taken)
    text = taken.read_text()
    assert "hunter2" not in text
    assert "managedFields" not in text
    assert read_instance(taken).problems == ()

    written = tmp_path / "written.json"
    ready = [{**m, "status": {**m["status"], **READY}} if m in NODES else m for m in MANIFESTS]
    written.write_text(json.dumps(manifest_list(ready)))
    from_cluster, from_file = solved(taken, tmp_path), solved(written, tmp_path)
    assert set(from_cluster.binds) == {f"{NAME}/fits-{i}" for i in range(3)}
    assert from_cluster.binds == from_file.binds
    assert from_cluster.pending == from_file.pending
    assert set(from_cluster.pending) == {f"{NAME}/limited", f"{NAME}/huge"}
    assert from_cluster.certificate.levels == from_file.certificate.levels


def test_the_standard_output_is_the_same_in_yaml(filled: ControlPlane, tmp_path: Path) -> None:
    piped = tmp_path / "piped.yaml"
    piped.write_text(optsched("snapshot", "--kubeconfig", filled.kubeconfig))
    assert set(solved(piped, tmp_path).binds) == {f"{NAME}/fits-{i}" for i in range(3)}
