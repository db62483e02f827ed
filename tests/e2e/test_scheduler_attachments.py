"""Volumes on a real cluster: pods start in the volume's zone, on nodes that can attach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.users import begin, reach

if TYPE_CHECKING:
    from tests.support.api import Raw
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

ZONE = "topology.kubernetes.io/zone"
CONF = """actions: enqueue, allocate, backfill
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
"""


def attaches(site: Site, node: str, most: int) -> None:
    """Create a CSINode that limits the number of volumes of the site's driver."""
    driver = {"name": driver_of(site), "nodeID": node, "allocatable": {"count": most}}
    owner = site.api.get(f"/api/v1/nodes/{node}")["metadata"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner["uid"]}
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": node, "ownerReferences": [reference]},
        "spec": {"drivers": [driver]},
    }
    site.create("/apis/storage.k8s.io/v1/csinodes", body)


def driver_of(site: Site) -> str:
    return f"{site.name}.csi.example.com"


def disk(site: Site, name: str, **labels: str) -> Raw:
    """Create a volume bound to a claim of its name, and return the pod's volume entry."""
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    full = f"{site.name}-{name}"
    reference = {"namespace": site.name, "name": name}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": full, "labels": labels},
        "spec": {
            **access,
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": driver_of(site), "volumeHandle": full},
            "claimRef": reference,
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": reference,
        "spec": {
            **access,
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": full,
        },
    }
    claims = f"/api/v1/namespaces/{site.name}/persistentvolumeclaims"
    site.create("/api/v1/persistentvolumes", volume)
    site.api.post(claims, claim)
    until(
        lambda: site.api.get(f"{claims}/{name}").get("status", {}).get("phase") == "Bound",
        f"claim {name} is bound",
    )
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}}]}


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_a_node_attaches_no_more_volumes_than_it_may(site: Site, solver: str) -> None:
    """A pod waits until a volume is detached, and its status names the volume driver."""
    (node,) = site.nodes(1, cpus=8)
    attaches(site, node, 2)
    disks = {name: disk(site, name) for name in ("a", "b", "c")}
    begin(site, site.file("volumes.conf", CONF), solver)
    for name in ("a", "b"):
        site.gang(f"has-{name}", 1, **disks[name])
    reach(site, {"has-a": 1, "has-b": 1})
    site.gang("shares-a", 1, **disks["a"])
    site.gang("wants-c", 1, **disks["c"])
    reach(site, {"shares-a": 1})
    told = f"cannot attach 1 more volume of driver {driver_of(site)} (limit 2)"
    site.await_waits("wants-c", "NoNodeMatches", told)
    site.complete("has-b")
    reach(site, {"has-a": 1, "shares-a": 1, "wants-c": 1})


def test_a_limit_that_grows_lets_those_in_who_wait(site: Site) -> None:
    """The scheduler watches CSINodes, so a higher limit admits waiting pods."""
    small, large = site.nodes(2, cpus=8)
    for node in (small, large):
        attaches(site, node, 0)
    mounted = disk(site, "a")
    begin(site, site.file("volumes.conf", CONF))
    site.gang("wants", 1, **mounted)
    site.await_waits("wants", "NoNodeMatches")
    site.api.delete(f"/apis/storage.k8s.io/v1/csinodes/{large}")
    reach(site, {"wants": 1})
    assert site.story.nodes_of("wants") == {large: 1}


def test_a_pod_goes_to_the_zone_of_its_volume(site: Site) -> None:
    """The label of the volume counts, and the message of a waiting pod names the zone."""
    zones = dict(zip(site.nodes(3, cpus=8), ("a", "b", "c"), strict=True))
    for node, zone in zones.items():
        site.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {ZONE: zone}}})
    near = disk(site, "near", **{ZONE: "b"})
    far = disk(site, "far", **{ZONE: "d__e"})
    begin(site, site.file("volumes.conf", CONF))
    site.gang("near", 3, **near)
    site.gang("far", 1, **far)
    reach(site, {"near": 3})
    (in_b,) = (node for node, zone in zones.items() if zone == "b")
    assert site.story.nodes_of("near") == {in_b: 3}
    told = f"did not match the zone of the volume of claim {site.name}/far ({ZONE} d or e)"
    site.await_waits("far", "NoNodeMatches", told)
