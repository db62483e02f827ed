"""Tests of the documented behaviour of actions and plugins on a real cluster."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.users import begin, conf, reach, seed, settle

if TYPE_CHECKING:
    from tests.support.live import Site
    from tests.support.story import Moment

pytestmark = pytest.mark.e2e

PLUGINS = """actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - name: predicates
"""

ORDER = """actions: "enqueue, allocate, backfill"
solver: none
tiers:
- plugins: [{{name: {}}}]
- plugins: [{{name: {}}}, {{name: gang}}, {{name: predicates}}, {{name: proportion}}]
"""


@pytest.mark.parametrize(("first", "second"), [("priority", "drf"), ("drf", "priority")])
def test_the_first_tier_decides_who_is_next(site: Site, first: str, second: str) -> None:
    """A13: a high-priority job that holds many CPUs competes with a job that holds none."""
    site.nodes(1)
    high = site.priority("high", 1000)
    scheduler = begin(site, site.file("order.conf", ORDER.format(first, second)), "none")
    site.gang("holds", 4, min_member=1, priorityClassName=high)
    site.await_bound("holds", 4)
    site.members("holds", range(4, 5), priorityClassName=high)
    site.gang("nothing", 1)
    site.await_waits("nothing", "NotEnoughResources")
    site.end_pod("holds-0")
    rivals = ("holds-4", "nothing-0")
    site.story.until(lambda s: any(p.node for p in s.pods() if p.name in rivals), "one follows")
    winner = {"priority": {"holds": 4, "nothing": 0}, "drf": {"holds": 3, "nothing": 1}}[first]
    settle(site, scheduler, winner)


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_dominant_shares_are_equal(site: Site, solver: str) -> None:
    """S9: 9 CPUs and 18 GB hold three tasks of (1 CPU, 4 GB) and two of (3 CPU, 1 GB)."""
    site.nodes(1, cpus=9, memory="18Gi")
    site.gang("a", 6, min_member=1, cpus=1, memory="4Gi")
    site.gang("b", 6, min_member=1, cpus=3, memory="1Gi")
    scheduler = begin(site, conf("seed"), solver)
    settle(site, scheduler, {"a": 3, "b": 2})


def test_pods_that_ask_for_nothing_run_while_a_large_gang_waits(site: Site) -> None:
    """S6: best-effort pods run while a large gang waits."""
    site.nodes(1)
    scheduler = begin(site, conf("seed"))
    site.gang("now", 3)
    site.await_bound("now", 3)
    site.gang("large", 4)
    site.await_waits("large", "NotEnoughResources")
    site.gang("light", 2, cpus=0)
    settle(site, scheduler, {"now": 3, "large": 0, "light": 2})


@pytest.mark.parametrize(
    ("plugin", "num_nodes"),
    [
        ("nodeorder", 4),
        ("{name: nodeorder, arguments: {leastrequested.weight: 0, mostrequested.weight: 5}}", 1),
        ("", 1),
    ],
    ids=["nodeorder", "nodeorder with other weights", "binpack of the guide"],
)
def test_scores_spread_or_pack(site: Site, plugin: str, num_nodes: int) -> None:
    """S3, S12, S13: four pods with one GPU each start on four nodes of four GPUs."""
    fragment = seed("s001-L329").read_text()
    entry = f"- {plugin if plugin.startswith('{') else f'name: {plugin}'}\n" if plugin else fragment
    site.nodes(4, gpus=4)
    scheduler = begin(site, site.file("scores.conf", PLUGINS + indent(entry, "  ")))
    site.gang("four", 4, gpus=1)
    settle(site, scheduler, {"four": 4})
    assert len(site.story.nodes_of("four")) == num_nodes


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_pods_of_the_system_go_first_and_are_never_evicted(site: Site, solver: str) -> None:
    """S14: both pods request the whole node at the same time."""
    site.nodes(1)
    urgent = site.priority("urgent", 1000)
    site.gang("urgent", 1, cpus=4, priorityClassName=urgent)
    path = "/api/v1/namespaces/kube-system/pods"
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "4"}}}
    spec = {"schedulerName": site.name, "containers": [container]}
    name = f"{site.name}-system"
    site.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    scheduler = begin(site, conf("seed-full"), solver)
    site.await_waits("urgent", "NotEnoughResources")
    settle(site, scheduler, {"urgent": 0})
    running = lambda: site.api.get(f"{path}/{name}")["status"]["phase"] == "Running"  # noqa: E731
    until(running, "the pod of the system runs")


# --- task topology -------------------------------------------------------------------------------


def pairs_apart(pods: list[Moment]) -> int:
    """Return the number of pairs of a parameter server and a worker on different nodes."""
    nodes = {role: [p.node for p in pods if f"-{role}-" in p.name] for role in ("ps", "worker")}
    return sum(a != b for a in nodes["ps"] for b in nodes["worker"])


def training(name: str, notes: dict[str, str]) -> dict[str, object]:
    """Return a job with 2 parameter servers of 1 CPU and 4 workers of 2 CPUs."""

    def task(role: str, number: int, cpu: str, memory: str) -> dict[str, object]:
        container = {"name": "c", "image": "tf"}
        requests = {"requests": {"cpu": cpu, "memory": memory}}
        spec = {"restartPolicy": "Never", "containers": [{**container, "resources": requests}]}
        return {"name": role, "replicas": number, "template": {"spec": spec}}

    tasks = [task("ps", 2, "1", "1000Mi"), task("worker", 4, "2", "3800Mi")]
    meta = {
        "name": name,
        "annotations": {f"volcano.sh/task-topology-{k}": v for k, v in notes.items()},
    }
    return {"metadata": meta, "spec": {"minAvailable": 6, "tasks": tasks}}


@pytest.mark.parametrize(
    ("notes", "least"),
    [
        ({"affinity": "ps,worker", "anti-affinity": "ps"}, 4),
        ({"affinity": "ps,worker"}, 2),
    ],
    ids=["servers apart", "all together"],
)
def test_servers_and_workers_are_together_as_far_as_can_be(
    site: Site, notes: dict[str, str], least: int
) -> None:
    """X2, S22: three jobs on six nodes of 8 CPUs always have the fewest separated pairs."""
    site.nodes(6, cpus=8)
    scheduler = begin(site, conf("tt"))
    for repetition in range(3):
        groups = [site.job(training(f"tf{i}", notes)) for i in range(3)]
        reach(site, dict.fromkeys(groups, 6))
        assert [pairs_apart(site.story.pods(g)) for g in groups] == [least] * 3
        if repetition < 2:
            site.remove(*groups)
    site.assert_still(scheduler)
