"""Claims that wait for their first consumer, with Kubernetes' own volume controllers.

The test acts as provisioner: it finds claims with a selected node and creates volumes there.
Kubernetes binds the claims to the volumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

SELECTED = "volume.kubernetes.io/selected-node"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
SIZE = {"storage": "1Gi"}


def storage_class(site: Site, provisioner: str = "csi.example.com") -> str:
    name = f"{site.name}-{provisioner.rpartition('/')[2].replace('.', '-')}"
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    how = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    site.create(CLASSES, {**body, **how})
    return name


def claims_of(site: Site) -> str:
    return f"/api/v1/namespaces/{site.name}/persistentvolumeclaims"


def claim(site: Site, name: str, storage_class: str) -> None:
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": SIZE},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    site.api.post(claims_of(site), {**body, "spec": spec})


def selected(site: Site, name: str) -> str:
    found = site.api.get(f"{claims_of(site)}/{name}")["metadata"].get("annotations", {})
    return str(found.get(SELECTED, ""))


def volume(site: Site, name: str, storage_class: str, node: str, **more: Any) -> str:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec = {
        "storageClassName": storage_class,
        "capacity": SIZE,
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/volumes/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [here]}]}},
        **more,
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    site.create(VOLUMES, {**body, "spec": spec})
    return name


def provide(site: Site, name: str, storage_class: str) -> None:
    """Create a volume for a claim, once the claim has a selected node."""
    until(lambda: selected(site, name), f"claim {name} has been told its node")
    made_for = site.api.get(f"{claims_of(site)}/{name}")["metadata"]
    ref = {key: made_for[key] for key in ("namespace", "name", "uid")}
    ref |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    volume(site, f"{site.name}-{name}", storage_class, selected(site, name), claimRef=ref)


def mounting(*claims: str) -> list[dict[str, Any]]:
    return [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]


PATIENT = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - name: drf
  - name: proportion
  - name: nodeorder
  - name: predicates
    arguments: {volumebinding.bindTimeoutSeconds: 3}
"""


def told(site: Site, name: str, what: str) -> bool:
    return any(what in event["message"] for event in site.events(name))


def test_a_gang_is_bound_once_all_its_volumes_have_been_made(site: Site) -> None:
    site.nodes(2, cpus=1)
    made = storage_class(site)
    site.scheduler()
    site.group("g", 2)
    for i in range(2):
        claim(site, f"c{i}", made)
        annotations = {"scheduling.k8s.io/group-name": "g"}
        site.pod(f"g-{i}", annotations=annotations, volumes=mounting(f"c{i}"))
    provide(site, "c0", made)
    until(lambda: selected(site, "c1"), "the other claim has been told its node, too")
    until(
        lambda: site.api.get(f"{claims_of(site)}/c0")["status"]["phase"] == "Bound",
        "the first claim is bound",
    )
    # Other pods start in the meantime, but no pod of the gang starts.
    assert site.story.num_bound("g") == 0
    provide(site, "c1", made)
    site.story.until(lambda story: story.num_bound("g") == 2, "the gang is bound")
    site.story.assert_bound_once()
    assert {pod.node for pod in site.story.pods("g")} == {
        selected(site, "c0"),
        selected(site, "c1"),
    }


def test_pods_without_claims_wait_for_nobody(site: Site) -> None:
    site.nodes(1, cpus=2)
    made = storage_class(site)
    site.scheduler()
    claim(site, "c", made)
    site.pod("waits", volumes=mounting("c"))
    until(lambda: selected(site, "c"), "the claim has been told its node")
    site.pod("other")
    until(lambda: node_of(site, "other"), "the other pod is bound")
    assert not node_of(site, "waits")
    provide(site, "c", made)
    until(lambda: node_of(site, "waits"), "and the first one, too")


def test_pods_go_where_volumes_are_and_no_volume_is_given_twice(site: Site) -> None:
    here, there, _ = site.nodes(3, cpus=4)
    local = storage_class(site, "kubernetes.io/no-provisioner")
    for name, node in (("a", here), ("b", there)):
        volume(site, f"{site.name}-{name}", local, node)
    site.scheduler()
    site.group("g", 2)
    for i in range(2):
        claim(site, f"c{i}", local)
        annotations = {"scheduling.k8s.io/group-name": "g"}
        site.pod(f"g-{i}", annotations=annotations, volumes=mounting(f"c{i}"))
    site.story.until(lambda story: story.num_bound("g") == 2, "the gang is bound")
    assert site.story.nodes_of("g") == {here: 1, there: 1}
    bound = [site.api.get(f"{claims_of(site)}/c{i}")["spec"]["volumeName"] for i in range(2)]
    assert sorted(bound) == [f"{site.name}-a", f"{site.name}-b"]
    claim(site, "late", local)
    site.pod("late", volumes=mounting("late"))
    until(lambda: told(site, "late", "late"), "why the third pod waits is told")
    assert not node_of(site, "late")


def test_a_claim_that_gets_no_volume_in_time_is_named_and_set_free(site: Site) -> None:
    site.nodes(1)
    made = storage_class(site)
    site.scheduler("--scheduler-conf", str(site.file("patient.conf", PATIENT)))
    claim(site, "c", made)
    site.pod("p", volumes=mounting("c"))
    message = f"claim {site.name}/c was not bound within 3 s"
    until(lambda: told(site, "p", message), "the event names the claim")
    assert not node_of(site, "p")
    provide(site, "c", made)
    until(lambda: node_of(site, "p"), "the pod is bound once there is a volume")


def test_a_scheduler_that_comes_after_another_goes_on_waiting(site: Site) -> None:
    site.nodes(2)
    made = storage_class(site)
    first = site.scheduler()
    claim(site, "c", made)
    site.pod("p", volumes=mounting("c"))
    until(lambda: selected(site, "c"), "the claim has been told its node")
    node = selected(site, "c")
    first.kill()
    site.scheduler()
    provide(site, "c", made)
    until(lambda: node_of(site, "p"), "the pod is bound")
    assert node_of(site, "p") == node == selected(site, "c")


def node_of(site: Site, pod: str) -> str:
    found = site.api.get(f"/api/v1/namespaces/{site.name}/pods/{pod}")
    return str(found["spec"].get("nodeName") or "")
