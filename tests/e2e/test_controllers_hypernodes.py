"""HyperNodes of a real cluster follow the labels of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until
from tests.support.ufm import Ufm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.live import Site

pytestmark = pytest.mark.e2e

CONFIG_KEY = "volcano-controller.conf"
HYPER_NODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
TEXT = """
networkTopologyDiscovery:
- source: label
  enabled: true
  config:
    networkTopologyTypes:
      fabric:
      - nodeLabel: {0}/spine
      - nodeLabel: {0}/leaf
      - nodeLabel: kubernetes.io/hostname
"""


def found(site: Site) -> dict[str, tuple[int, int]]:
    """Return the tier and the number of nodes by label value."""

    def value(hypernode: dict[str, Any]) -> str:
        labels = hypernode["metadata"].get("labels", {})
        return next((v for k, v in labels.items() if k.startswith(f"{site.name}/")), "")

    return {
        value(h): (h["spec"]["tier"], h.get("status", {}).get("nodeCount", 0))
        for h in site.api.items(HYPER_NODES)
        if value(h)
    }


def label(site: Site, node: str, **labels: str | None) -> None:
    full = {f"{site.name}/{name}": value for name, value in labels.items()}
    site.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": full}})


def test_leaves_and_spines_follow_the_labels(site: Site) -> None:
    names = site.nodes(4)
    for name, leaf in zip(names, "aabb", strict=True):
        label(site, name, leaf=leaf, spine="s")
    controllers = site.controllers("--config-map", f"{site.name}/topology")
    site.config_map("topology", **{CONFIG_KEY: TEXT.format(site.name)})
    until(lambda: found(site) == {"a": (1, 2), "b": (1, 2), "s": (2, 4)}, "a tree")
    site.api.patch(
        f"/api/v1/nodes/{names[0]}", {"metadata": {"labels": {f"{site.name}/leaf": "b"}}}
    )
    until(lambda: found(site) == {"a": (1, 1), "b": (1, 3), "s": (2, 4)}, "a node moves")
    site.api.patch(
        f"/api/v1/nodes/{names[1]}", {"metadata": {"labels": {f"{site.name}/leaf": None}}}
    )
    until(lambda: found(site) == {"b": (1, 3), "s": (2, 3)}, "a leaf goes")
    broken = TEXT.format(site.name).replace("label\n", "ufm\n", 1)
    path = f"/api/v1/namespaces/{site.name}/configmaps/topology"
    site.api.patch(path, {"data": {CONFIG_KEY: broken}})
    until(lambda: site.events("topology", "InvalidTopologyDiscovery"), "it is told")
    assert found(site) == {"b": (1, 3), "s": (2, 3)}
    controllers.stop()
    for hypernode in site.api.items(HYPER_NODES):
        site.api.delete(f"{HYPER_NODES}/{hypernode['metadata']['name']}")


UFM = """
networkTopologyDiscovery:
- source: ufm
  enabled: true
  interval: 10s
  credentials:
    secretRef:
      name: ufm-credentials
  config:
    endpoint: {0}
"""


def leaves(site: Site) -> list[list[str]]:
    """Return the nodes of each tier-1 HyperNode that UFM discovered."""
    made = site.api.items(HYPER_NODES, labelSelector="volcano.sh/network-topology-source=ufm")
    return sorted(
        [member["selector"]["exactMatch"]["name"] for member in each["spec"]["members"]]
        for each in made
        if each["spec"]["tier"] == 1
    )


def spine(site: Site) -> int:
    """Return the number of nodes below the spine."""
    found = site.api.find(f"{HYPER_NODES}/spine-hn") or {}
    number: int = found.get("status", {}).get("nodeCount", 0)
    return number


def test_a_fabric_is_followed(site: Site, tmp_path: Path) -> None:
    names = site.nodes(4)
    secrets = f"/api/v1/namespaces/{site.name}/secrets"
    with Ufm(tmp_path) as ufm:
        ufm.links = tuple(zip(names, ("s1", "s1", "s2", "s2"), strict=True))
        controllers = site.controllers("--config-map", f"{site.name}/topology")
        site.config_map("topology", **{CONFIG_KEY: UFM.format(ufm.url)})
        until(lambda: site.events("topology", "TopologyNotDiscovered"), "it lacks a Secret")
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ufm-credentials"}}
        site.api.post(secrets, {**secret, "data": ufm.secret()})
        until(lambda: leaves(site) == [list(names[:2]), list(names[2:])], "two leaves")
        until(lambda: spine(site) == 4, "a spine above them")
        ufm.code = 503
        asked = len(ufm.asked)
        until(lambda: len(ufm.asked) > asked, "it is asked again")
        assert leaves(site) == [list(names[:2]), list(names[2:])]
        ufm.links, ufm.code = tuple((name, "s1") for name in names), 200
        until(lambda: leaves(site) == [list(names)], "one leaf")
        controllers.stop()
    for hypernode in site.api.items(HYPER_NODES):
        site.api.delete(f"{HYPER_NODES}/{hypernode['metadata']['name']}")


def test_a_secret_of_another_namespace_is_not_sent_to_a_fabric(site: Site, tmp_path: Path) -> None:
    with Ufm(tmp_path) as ufm:
        controllers = site.controllers("--config-map", f"{site.name}/topology")
        text = UFM.format(ufm.url).replace(
            "name: ufm-credentials", "name: ufm-credentials\n      namespace: kube-system"
        )
        site.config_map("topology", **{CONFIG_KEY: text})
        told = "controllers read only Secrets of"
        site.await_event("topology", told, reason="InvalidTopologyDiscovery")
        assert ufm.asked == []
        controllers.stop()
