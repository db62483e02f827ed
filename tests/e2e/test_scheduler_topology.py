"""Gangs stay within one part of the network topology on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

HYPERNODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
RACK = {"mode": "hard", "highestTierAllowed": 1}


def rack(site: Site, name: str, first: int, last: int) -> None:
    """Create a HyperNode that selects nodes by number, including nodes that do not exist yet."""
    pattern = f"^{site.name}-[{first}-{last}]$"
    body: dict[str, Any] = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": f"{site.name}-{name}"},
        "spec": {
            "tier": 1,
            "members": [{"type": "Node", "selector": {"regexMatch": {"pattern": pattern}}}],
        },
    }
    site.create(HYPERNODES, body)


def gang(site: Site, name: str, size: int) -> None:
    site.group(name, size, networkTopology=RACK)
    site.members(name, range(size), cpus=3)


def nodes_of(site: Site, name: str) -> set[str]:
    return {pod.node for pod in site.story.pods() if pod.gang == name and pod.node}


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_gangs_stay_within_a_rack_and_wait_for_one(site: Site, solver: str) -> None:
    names = site.nodes(5, cpus=3)
    site.scheduler("--config", "topology-first", "--solver", solver)
    gang(site, "early", 2)
    site.await_waits("early", "TopologyNotFound")
    for name, first, last in (("a", 0, 1), ("b", 2, 3), ("c", 4, 6)):
        rack(site, name, first, last)
    site.story.until(lambda story: story.num_bound("early") == 2, "the first gang is bound")
    assert nodes_of(site, "early") in (set(names[:2]), set(names[2:4]))
    gang(site, "large", 3)
    site.await_waits("large", "TopologyUnsatisfied")
    more = site.nodes(2, cpus=3)
    site.story.until(lambda story: story.num_bound("large") == 3, "the large gang is bound")
    assert nodes_of(site, "large") == {names[4], *more}
