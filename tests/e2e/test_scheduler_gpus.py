"""Shared GPUs on a real API server: a bind assigns GPU shares to a pod together with its node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import Refused, until

if TYPE_CHECKING:
    from tests.support.api import Api
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

POLICY = """actions: allocate
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
"""
REGISTER = "GPU-a,10,16384,NVIDIA-Tesla T4,true,hami-core:"
OFFERED = {
    "volcano.sh/vgpu-number": "10",
    "volcano.sh/vgpu-memory": "16384",
    "volcano.sh/vgpu-cores": "100",
}


def halves(site: Site, *names: str) -> None:
    asked = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8000"}
    container: dict[str, Any] = {"name": "main", "image": "none"}
    container["resources"] = {"limits": {"cpu": "1", **asked}}
    for name in names:
        site.pod(name, containers=[container])


def annotations(site: Site, pod: str) -> dict[str, str]:
    found = site.api.get(f"/api/v1/namespaces/{site.name}/pods/{pod}")
    return dict(found["metadata"]["annotations"]) if found["spec"].get("nodeName") else {}


def bound(site: Site) -> list[dict[str, str]]:
    return [told for pod in "abc" if (told := annotations(site, pod))]


GEOMETRIES = """nvidia:
  knownMigGeometries:
  - models: [A30]
    allowedGeometries:
    - group: halves
      geometries: [{name: 2g.12gb, memory: 12288, count: 2}]
"""


def test_a_gpu_is_cut_by_the_geometries_of_the_config_map(site: Site) -> None:
    (node,) = site.nodes(1)
    cut = REGISTER.replace("hami-core", "mig").replace("Tesla T4", "A30")
    register = {"metadata": {"annotations": {"volcano.sh/node-vgpu-register": cut}}}
    site.api.patch(f"/api/v1/nodes/{node}", register)
    offered = {**OFFERED, "volcano.sh/vgpu-memory": "24576"}
    status = {"status": {"capacity": offered, "allocatable": offered}}
    site.api.patch(f"/api/v1/nodes/{node}/status", status)
    site.config_map("geometries", **{"device-config.yaml": GEOMETRIES})
    named = f"""      deviceshare.KnownGeometriesCMName: geometries
      deviceshare.KnownGeometriesCMNamespace: {site.name}
"""
    site.scheduler("--config", str(site.file("cut.conf", POLICY + named)))
    halves(site, "a", "b", "c")
    until(lambda: len(bound(site)) == 2, "two of three are bound")
    told = sorted(a["volcano.sh/vgpu-ids-new"] for a in bound(site))
    assert told == [f"GPU-a[halves-{i}],NVIDIA,12288,0:" for i in range(2)]


NPU = "huawei.com/Ascend310P"


def test_npus_are_cut_by_templates_and_pods_know_which(site: Site) -> None:
    good, bad = site.nodes(2)
    device = {"id": "npu-0", "count": 7, "devmem": 21527, "devcore": 8, "type": "Ascend310P"}
    status = {"status": {"capacity": {NPU: "7"}, "allocatable": {NPU: "7"}}}
    for node, report in ((good, json.dumps([device])), (bad, "not JSON")):
        told = {"hami.io/node-register-Ascend310P": report}
        site.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": told}})
        site.api.patch(f"/api/v1/nodes/{node}/status", status)
    policy = POLICY.replace("VGPUEnable", "AscendHAMiVNPUEnable")
    site.scheduler("--config", str(site.file("npus.conf", policy)))
    container: dict[str, Any] = {"name": "main", "image": "none"}
    container["resources"] = {"limits": {"cpu": "1", NPU: "1", f"{NPU}-memory": "7000"}}
    for pod in "ab":
        site.pod(pod, containers=[container])
    site.pod("c", annotations={"plain": "yes"})
    (told,) = until(
        lambda: [t for t in bound(site) if NPU in t], "one of two that ask for NPUs is bound"
    )
    assert told["hami.io/Ascend310P-devices-allocated"] == "npu-0,Ascend310P,12288,0:;"
    assert (
        told["hami.io/Ascend310P-devices-to-allocate"]
        == told["hami.io/Ascend310P-devices-allocated"]
    )
    assert told[NPU] == '[{"UUID":"npu-0","temp":"vir04"}]'
    assert (told["hami.io/vgpu-node"], told["hami.io/bind-phase"]) == (good, "allocating")
    (waiting,) = (p for p in "ab" if not annotations(site, p))
    site.await_event(waiting, "no Ascend310P with 7000 memory")
    flaw = until(
        lambda: site.events(bad, "InvalidDeviceReport", "default"), "the bad report is told of"
    )
    assert "hami.io/node-register-Ascend310P" in flaw[0]["message"]
    until(lambda: annotations(site, "c"), "a plain pod runs all the same")


def test_two_halves_share_a_gpu_and_know_it(site: Site) -> None:
    (node,) = site.nodes(1)
    register = {"metadata": {"annotations": {"volcano.sh/node-vgpu-register": REGISTER}}}
    site.api.patch(f"/api/v1/nodes/{node}", register)
    status = {"status": {"capacity": OFFERED, "allocatable": OFFERED}}
    site.api.patch(f"/api/v1/nodes/{node}/status", status)
    config = site.file("shared.conf", POLICY)
    scheduler = site.scheduler("--config", str(config))
    halves(site, "a", "b", "c")
    until(lambda: len(bound(site)) == 2, "two of three are bound")
    told = bound(site)
    assert [a["volcano.sh/vgpu-ids-new"] for a in told] == ["GPU-a,NVIDIA,8000,0:"] * 2
    assert {a["volcano.sh/vgpu-node"] for a in told} == {node}
    (waiting,) = (p for p in "abc" if not annotations(site, p))
    site.await_event(waiting, "vGPU with 8000 memory")
    # A later annotation frees no GPU, and a pod that is created with a node holds none.
    freed, other = (p for p in "abc" if p != waiting)
    nothing = {"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": None}}}
    site.api.patch(f"/api/v1/namespaces/{site.name}/pods/{freed}", nothing)
    claims = {"volcano.sh/vgpu-ids-new": "GPU-a\x1b[31m\r\n,NVIDIA,16384,0:"}
    asked = {"limits": {"volcano.sh/vgpu-number": "1"}}
    container = {"name": "main", "image": "none", "resources": asked}
    site.pod("claims", containers=[container], annotations=claims, nodeName=node)
    for name, said in ((freed, "it was bound with GPU-a"), ("claims", "was created with its node")):
        (event,) = until(lambda name=name: site.events(name, "DevicesNotBound"), "it is told")
        assert said in event["message"]
        assert event["type"] == "Warning"
        assert event["message"].isprintable()
    assert "holds GPU-a\\x1b[31m\\r\\n" in event["message"]
    assert scheduler.log.replace("\n", "").isprintable()
    assert site.events(other, "DevicesNotBound") == []
    assert not annotations(site, waiting)


def test_after_a_restart_the_record_of_the_bind_counts_and_not_what_a_tenant_wrote(
    site: Site,
) -> None:
    """No webhook guards these pods, and the tenant has the role `edit`."""
    (node,) = site.nodes(1)
    register = {"metadata": {"annotations": {"volcano.sh/node-vgpu-register": REGISTER}}}
    site.api.patch(f"/api/v1/nodes/{node}", register)
    status = {"status": {"capacity": OFFERED, "allocatable": OFFERED}}
    site.api.patch(f"/api/v1/nodes/{node}/status", status)
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.name}/rolebindings"
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    site.api.post(roles, {"metadata": {"name": "eve"}, "roleRef": role, "subjects": [subject]})
    config = str(site.file("shared.conf", POLICY))
    first = site.scheduler("--config", config)
    halves(site, "a", "b")
    until(lambda: all(annotations(site, pod) for pod in "ab"), "both halves are bound")
    first.stop()
    pods = f"/api/v1/namespaces/{site.name}/pods"
    eve = site.api.as_user("eve")
    try:
        nothing = {"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": None}}}
        until(lambda: try_patch(eve, f"{pods}/a", nothing), "eve may edit")
        with pytest.raises(Refused, match="pods/status"):
            eve.patch(f"{pods}/a/status", {"status": {"conditions": []}})
    finally:
        eve.close()
    halves(site, "c")
    site.scheduler("--config", config)
    (event,) = until(lambda: site.events("a", "DevicesNotBound"), "the claim is named")
    assert "annotations say that the pod holds no device" in event["message"]
    assert "it was bound with GPU-a, and only these count" in event["message"]
    site.await_event("c", "vGPU with 8000 memory")
    assert site.events("b", "DevicesNotBound") == []
    assert annotations(site, "b")["volcano.sh/vgpu-ids-new"] == "GPU-a,NVIDIA,8000,0:"
    assert not annotations(site, "c")


def try_patch(user: Api, path: str, body: dict[str, Any]) -> bool:
    """Patch an object, and return False if the server does not know the user's role yet."""
    try:
        user.patch(path, body)
    except Refused:
        return False
    return True


def test_absurd_numbers_of_a_node_are_named_and_plain_pods_start(site: Site) -> None:
    (node,) = site.nodes(1)
    offered = {"volcano.sh/vgpu-number": "2000000000", "nvidia.com/gpu": "2000000000"}
    status = {"status": {"capacity": offered, "allocatable": offered}}
    site.api.patch(f"/api/v1/nodes/{node}/status", status)
    site.scheduler("--config", str(site.file("shared.conf", POLICY)))
    (event,) = until(lambda: site.events(node, "InvalidDeviceReport", "default"), "it is named")
    assert "2000000000 is more than a machine can have" in event["message"]
    site.pod("gpu", gpus=1)
    site.pod("plain")
    until(lambda: annotations(site, "plain"), "a plain pod runs all the same")
    assert not annotations(site, "gpu")
