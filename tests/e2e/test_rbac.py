"""The scheduler works with exactly the rights of deploy/manifests/scheduler-rbac.yaml."""

from __future__ import annotations

import json
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import shipped
from optsched.local.kubectl import Kubectl, KubectlError
from tests.e2e.test_scheduler_volumes import claim, mounting, provide, storage_class, volume
from tests.formats.objects import claiming, device_claim, device_class, device_slice
from tests.support.api import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.live import Site

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("rbac")]

MANIFEST = shipped("manifests", "scheduler-rbac.yaml")
NAMESPACE, ACCOUNT = "volcano-system", "optsched-scheduler"


@pytest.fixture(scope="module")
def kubeconfig(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Yield a kubeconfig with a token of the scheduler's account instead of the administrator."""
    kubectl = control_plane.kubectl
    kubectl("apply", "-f", str(MANIFEST))
    token = kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=1h").strip()
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path_factory.mktemp("account") / "kubeconfig"
    path.write_text(json.dumps(config))
    yield path
    kubectl("delete", "-f", str(MANIFEST), "--timeout=60s")


def test_it_binds_tells_and_leads(site: Site, kubeconfig: Path) -> None:
    site.nodes(1)
    site.gang("fits", 2)
    site.gang("waits", 9)
    election = ("--leader-elect", "--lock-namespace", NAMESPACE, "--lock-name", "volcano")
    scheduler = site.scheduler(*election, kubeconfig=kubeconfig)
    site.await_bound("fits", 2)
    site.await_phase("fits", "Running")
    site.await_waits("waits", "Impossible")
    until(lambda: site.events("fits-0", "Scheduled"), "binds are told")
    until(lambda: site.events("waits", "Unschedulable"), "waiting is told")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/volcano"
    holder = site.api.get(lease)["spec"]["holderIdentity"]
    assert holder
    scheduler.stop()
    assert site.api.get(lease)["spec"]["holderIdentity"] == ""
    assert "403 Forbidden" not in scheduler.log


def test_it_gives_claims_their_devices(site: Site, kubeconfig: Path) -> None:
    (node,) = site.nodes(1)
    resources = "/apis/resource.k8s.io/v1"
    site.create(f"{resources}/deviceclasses", device_class())
    site.create(f"{resources}/resourceslices", device_slice(node, "gpu-0"))
    claims = f"{resources}/namespaces/{site.name}/resourceclaims"
    site.api.post(claims, device_claim("c", namespace=site.name))
    scheduler = site.scheduler(kubeconfig=kubeconfig)
    site.pod("p", **claiming("c"))
    until(lambda: site.events("p", "Scheduled"), "the pod is bound")
    assert site.api.get(f"{claims}/c")["status"]["reservedFor"]
    scheduler.stop()
    assert "403 Forbidden" not in scheduler.log


def test_it_gets_claims_their_volumes(site: Site, kubeconfig: Path) -> None:
    (node,) = site.nodes(1)
    local = storage_class(site, "kubernetes.io/no-provisioner")
    volume(site, f"{site.name}-there", local, node)
    made = storage_class(site)
    for name, kind in (("there", local), ("made", made)):
        claim(site, name, kind)
    scheduler = site.scheduler(kubeconfig=kubeconfig)
    site.pod("p", volumes=mounting("there", "made"))
    provide(site, "made", made)
    until(lambda: site.events("p", "Scheduled"), "the pod is bound")
    scheduler.stop()
    assert "403 Forbidden" not in scheduler.log


def test_only_its_user_may_read_its_dumps(site: Site, kubeconfig: Path, tmp_path: Path) -> None:
    site.nodes(1)
    folder = tmp_path / "dumps"
    scheduler = site.scheduler("--dump-dir", str(folder), kubeconfig=kubeconfig)
    scheduler.process.send_signal(signal.SIGUSR2)
    scheduler.await_log(f"snapshot dumped to {folder}")
    scheduler.stop()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes.pop(folder) == 0o700
    assert set(modes.values()) == {0o600}


def test_it_may_do_nothing_else(control_plane: ControlPlane, kubeconfig: Path) -> None:
    user = Kubectl(control_plane.kubectl.binary, kubeconfig)
    assert user("auth", "can-i", "list", "pods", "--all-namespaces").strip() == "yes"
    for verb, what in (
        ("get", "secrets"),
        ("list", "secrets"),
        ("delete", "pods"),
        ("create", "pods"),
        ("delete", "nodes"),
        ("list", "configmaps"),
        ("delete", "queues"),
        ("patch", "pods"),
        ("patch", "nodes"),
    ):
        with pytest.raises(KubectlError, match="can-i"):
            user("auth", "can-i", verb, what, "--all-namespaces")


def test_the_deployment_is_accepted(control_plane: ControlPlane, kubeconfig: Path) -> None:
    manifest = str(shipped("manifests", "scheduler.yaml"))
    shown = control_plane.kubectl("apply", "--dry-run=server", "-f", manifest, "-o", "name")
    assert shown.strip() == f"deployment.apps/{ACCOUNT}"
