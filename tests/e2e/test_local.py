"""The local control plane: start, running pods, failing components, and a clean stop."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from optsched.local.components import Lifetime, Options
from optsched.local.kubectl import Kubectl, KubectlError, install_crds, manifest_list, node_manifest
from optsched.local.plane import ControlPlane, PlaneError
from tests.support.api import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.assets import Assets

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    kubectl = control_plane.kubectl
    kubectl("create", "namespace", "local-test")
    kubectl.apply(manifest_list([node_manifest("local-1"), node_manifest("local-2", gpu=8)]))
    kubectl("wait", "--for=condition=Ready", "--timeout=90s", "node/local-1", "node/local-2")
    yield "local-test"
    kubectl("delete", "namespace", "local-test", "--wait=false")
    kubectl("delete", "node", "local-1", "local-2")


def pod(name: str, namespace: str, *, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    # The API server does not serve the owner's group, and the garbage collector waits for it.
    owner = {"apiVersion": "jobs.example.org/v1", "kind": "Job", "name": "j", "uid": "u"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": annotations or {},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": "local-1",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none"}],
            "initContainers": [{"name": "before", "image": "none"}],
        },
    }


def await_phase(kubectl: Kubectl, namespace: str, name: str, phase: str) -> dict[str, Any]:
    condition = f"--for=jsonpath={{.status.phase}}={phase}"
    kubectl("wait", condition, "--timeout=90s", f"pod/{name}", "-n", namespace)
    return kubectl.json("get", "pod", name, "-n", namespace)["status"]


def test_the_api_server_answers_over_verified_tls(control_plane: ControlPlane) -> None:
    url = f"{control_plane.server}/readyz"
    ours = ssl.create_default_context(cafile=str(control_plane.layout.pki / "ca.crt"))
    with urllib.request.urlopen(url, context=ours, timeout=5) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(url, context=ssl.create_default_context(), timeout=5)


def test_it_is_the_pinned_minor(control_plane: ControlPlane) -> None:
    assert control_plane.kubectl.json("version")["serverVersion"]["minor"] == "36"


def test_nodes_have_what_was_asked_for(control_plane: ControlPlane, namespace: str) -> None:
    status = control_plane.kubectl.json("get", "node", "local-2")["status"]
    assert status["allocatable"]["nvidia.com/gpu"] == "8"
    assert "taints" not in control_plane.kubectl.json("get", "node", "local-2")["spec"]


def test_a_pod_runs_until_it_is_told_to_end(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(pod("told", namespace))
    running = await_phase(kubectl, namespace, "told", "Running")
    assert running["podIP"].startswith("10.")
    assert running["containerStatuses"][0]["ready"]

    kubectl("annotate", "pod", "told", "-n", namespace, "optsched.io/complete=")
    ended = await_phase(kubectl, namespace, "told", "Succeeded")
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    ready = next(c for c in ended["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")


@pytest.mark.parametrize(
    ("annotation", "phase", "exit_code"),
    [
        ("t/done=1", "Succeeded", 0),
        ("t/fail=1", "Failed", 1),
        ("optsched.io/fail=", "Failed", 1),
        ("optsched.io/fail=137", "Failed", 137),
    ],
)
def test_how_a_pod_is_told_to_end(
    control_plane: ControlPlane, namespace: str, annotation: str, phase: str, exit_code: int
) -> None:
    kubectl = control_plane.kubectl
    name = f"end-{exit_code}-{len(annotation)}"
    kubectl.apply(pod(name, namespace, annotations={"optsched.io/run-seconds": "3600"}))
    await_phase(kubectl, namespace, name, "Running")
    kubectl("annotate", "pod", name, "-n", namespace, annotation)
    ended = await_phase(kubectl, namespace, name, phase)
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == exit_code
    assert ended["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_a_pod_runs_for_its_seconds_whatever_happens_meanwhile(
    control_plane: ControlPlane, namespace: str
) -> None:
    kubectl = control_plane.kubectl
    # On a busy machine, the first look at the pod may come seconds after its start.
    kubectl.apply(pod("timed", namespace, annotations={"optsched.io/run-seconds": "6"}))
    began = float(
        next(
            condition["message"]
            for condition in await_phase(kubectl, namespace, "timed", "Running")["conditions"]
            if condition["type"] == "Ready"
        )
    )
    numbers = count()

    def has_ended() -> bool:
        """Return whether the pod has ended, although its labels change all the time."""
        touched = f"touched=number-{next(numbers)}"
        kubectl("label", "--overwrite", "pod", "timed", "-n", namespace, touched)
        status = kubectl.json("get", "pod", "timed", "-n", namespace)["status"]
        return bool(status["phase"] == "Succeeded")

    until(has_ended, "it has run for its seconds")
    assert time.time_ns() / 1e6 - began >= 6000


def test_a_pod_with_a_job_for_an_owner_runs_on(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(pod("owned", namespace, annotations={"optsched.io/run-seconds": "soon"}))
    kubectl.apply(pod("later", namespace, annotations={"optsched.io/run-seconds": "1"}))
    await_phase(kubectl, namespace, "later", "Succeeded")
    assert await_phase(kubectl, namespace, "owned", "Running")["phase"] == "Running"


def test_a_deleted_pod_goes_at_once(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(pod("gone", namespace))
    await_phase(kubectl, namespace, "gone", "Running")
    kubectl("delete", "pod", "gone", "-n", namespace, "--timeout=60s")
    with pytest.raises(KubectlError, match="not found"):
        kubectl("get", "pod", "gone", "-n", namespace)


def test_a_node_set_to_not_ready_stays_so(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    kubectl.apply(node_manifest("local-broken"))
    kubectl("wait", "--for=condition=Ready", "--timeout=90s", "node/local-broken")
    patch = '{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}'
    kubectl("patch", "node", "local-broken", "--subresource=status", "-p", patch)
    # KWOK handles events of nodes in sequence, so it has seen the patch by now.
    kubectl.apply(node_manifest("local-next"))
    kubectl("wait", "--for=condition=Ready", "--timeout=90s", "node/local-next")
    conditions = kubectl.json("get", "node", "local-broken")["status"]["conditions"]
    assert next(c for c in conditions if c["type"] == "Ready")["status"] == "False"
    kubectl("delete", "node", "local-broken", "local-next")


def test_rbac_decides_for_ordinary_users(control_plane: ControlPlane) -> None:
    kubeconfig = control_plane.kubeconfig_for("jane", ["team:blue"])
    jane = Kubectl(control_plane.kubectl.binary, kubeconfig)
    user = jane.json("auth", "whoami")["status"]["userInfo"]
    assert user["username"] == "jane"
    assert "team:blue" in user["groups"]
    with pytest.raises(KubectlError, match="forbidden"):
        jane("get", "pods")


def test_the_definitions_are_served(control_plane: ControlPlane, tmp_path: Path) -> None:
    assert install_crds(control_plane.kubectl, tmp_path) == ()
    (tmp_path / "thing.yaml").write_text(
        """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.local.optsched.io}
spec:
  group: local.optsched.io
  names: {kind: Thing, plural: things}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
"""
    )
    assert install_crds(control_plane.kubectl, tmp_path) == ("things.local.optsched.io",)
    assert control_plane.kubectl.json("get", "things")["items"] == []


def test_objects_outlive_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl
    before = control_plane.pids
    kubectl("create", "configmap", "kept", "-n", namespace)
    control_plane.restart("kube-apiserver")
    assert kubectl.json("get", "configmap", "kept", "-n", namespace)["metadata"]["name"] == "kept"
    assert control_plane.pids["kube-apiserver"] != before["kube-apiserver"]
    assert {**control_plane.pids, "kube-apiserver": 0} == {**before, "kube-apiserver": 0}


def test_a_crash_is_seen_and_mended(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kill("kwok")
    assert "kwok" not in control_plane.pids
    assert not control_plane.is_ready()
    control_plane.start_component("kwok")
    until(control_plane.is_ready, "it is mended")
    control_plane.kubectl.apply(pod("after", namespace))
    await_phase(control_plane.kubectl, namespace, "after", "Running")
    with pytest.raises(PlaneError, match="kwok already runs"):
        control_plane.start_component("kwok")


def test_detached_it_outlives_its_starter_and_stops_from_elsewhere(
    assets: Assets, tmp_path: Path
) -> None:
    program = f"""
from pathlib import Path
from optsched.local.assets import Assets
from optsched.local.components import Lifetime, Options
from optsched.local.plane import ControlPlane
assets = Assets({{name: Path(path) for name, path in {paths(assets)}.items()}})
options = Options(lifetime=Lifetime.DETACHED, scheduler=True)
ControlPlane.start(Path({str(tmp_path)!r}), assets, options)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with ControlPlane.attach(tmp_path) as plane:
        until(plane.is_ready, "it runs on")
        assert set(plane.pids) == set(plane.components)
        plane.kubectl.apply(node_manifest("only"))
        unbound = pod("scheduled", "default")
        del unbound["spec"]["nodeName"]
        plane.kubectl.apply(unbound)
        await_phase(plane.kubectl, "default", "scheduled", "Running")
        with pytest.raises(PlaneError, match="already runs in"):
            ControlPlane.start(tmp_path, assets, Options(lifetime=Lifetime.DETACHED))
        ports = plane.server
    assert plane.pids == {}
    plane.stop()
    with ControlPlane.start(tmp_path, assets) as again:
        assert again.server == ports
        assert again.kubectl.json("get", "node", "only")["metadata"]["name"] == "only"


def test_owned_it_ends_with_its_starter_even_if_that_is_killed(
    assets: Assets, tmp_path: Path
) -> None:
    program = f"""
import os, signal, threading
from pathlib import Path
from optsched.local.assets import Assets
from optsched.local.plane import ControlPlane
assets = Assets({{name: Path(path) for name, path in {paths(assets)}.items()}})
def start():
    global plane
    plane = ControlPlane.start(Path({str(tmp_path)!r}), assets)
thread = threading.Thread(target=start)
thread.start()
thread.join()
assert plane.is_ready()
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -9
    plane = ControlPlane.attach(tmp_path)
    until(lambda: plane.pids == {}, "all components have ended")


def test_what_dies_at_the_start_is_named_with_its_last_words(
    assets: Assets, tmp_path: Path
) -> None:
    options = Options(extra_args={"kube-apiserver": ["--no-such-flag"]})
    with pytest.raises(PlaneError, match=r"kube-apiserver ended while starting:\n(.*\n)*.*no-such"):
        ControlPlane.start(tmp_path, assets, options)
    assert ControlPlane.attach(tmp_path).pids == {}


def paths(assets: Assets) -> dict[str, str]:
    return {name: str(path) for name, path in assets.paths.items()}
