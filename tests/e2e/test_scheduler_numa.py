"""NUMA on a real API server: pods wait for a node with idle capacity on one NUMA node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

NUMATOPOLOGIES = "/apis/nodeinfo.volcano.sh/v1alpha1/numatopologies"
POLICY = """actions: enqueue, allocate, backfill
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: numaaware
"""
ASKS = {"volcano.sh/numa-topology-policy": "single-numa-node"}
DECIDED = "volcano.sh/topology-decision"


def numatopology(name: str, free: str) -> dict[str, Any]:
    """Return an agent's record of a machine with CPUs 0-3 and 4-7 on two NUMA nodes."""
    return {
        "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
        "kind": "Numatopology",
        "metadata": {"name": name},
        "spec": {
            "policies": {
                "CPUManagerPolicy": "static",
                "TopologyManagerPolicy": "single-numa-node",
            },
            "numares": {"cpu": {"allocatable": free, "capacity": 8}},
            "cpuDetail": {
                str(n): {"numa": n // 4, "socket": n // 4, "core": n % 4} for n in range(8)
            },
        },
    }


def solver(site: Site, name: str) -> None:
    """Create a Guaranteed pod that requests three CPUs on one NUMA node."""
    limits = {"cpu": "3", "memory": "64Mi"}
    containers = [{"name": "main", "image": "none", "resources": {"limits": limits}}]
    site.pod(name, containers=containers, annotations=ASKS)


def pod(site: Site, name: str) -> dict[str, Any]:
    return site.api.get(f"/api/v1/namespaces/{site.name}/pods/{name}")


def node_of(site: Site, name: str) -> str:
    return str(pod(site, name)["spec"].get("nodeName", ""))


@pytest.mark.parametrize("solver_name", ["cpsat", "none"])
def test_pods_go_where_one_numa_node_has_room(site: Site, solver_name: str) -> None:
    split, whole, plain = site.nodes(3, cpus=8)
    site.create(NUMATOPOLOGIES, numatopology(split, "2-3,6-7"))
    site.create(NUMATOPOLOGIES, numatopology(whole, "0-3,6-7"))
    config = site.file("numa.conf", POLICY)
    site.scheduler("--config", str(config), "--solver", solver_name)
    solver(site, "first")
    until(lambda: node_of(site, "first"), "it is bound")
    assert node_of(site, "first") == whole
    decided = json.loads(pod(site, "first")["metadata"]["annotations"][DECIDED])
    assert decided == {"numa": {"0": {"cpu": "3"}}}
    solver(site, "second")
    site.await_event("second", "2 nodes had no NUMA node (single-numa-node) with 3 CPUs free")
    site.await_event("second", "1 node had no Numatopology with policy single-numa-node")
    assert node_of(site, "second") == ""
    site.create(NUMATOPOLOGIES, numatopology(plain, "0-7"))
    until(lambda: node_of(site, "second") == plain, "it goes to the node that has come")
