"""Pods of a ReplicaSet move on a real cluster, so that a gang gets one whole node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.live import Scheduler, Site
    from tests.support.story import Moment, Story

pytestmark = pytest.mark.e2e

MOVES = "optsched.io/moves"
MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: moving
meaning: Running pods are moved for gangs that need room in one piece.
actions: [enqueue, allocate, consolidation, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: predicates}, {name: capacity}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks]
solver: {engine: cpsat, budget: 400ms}
"""


class Replicas:
    """A ReplicaSet of pods with one CPU each."""

    def __init__(self, site: Site, name: str, number: int) -> None:
        self._site, self._name, self.number = site, name, number
        self._path = f"/apis/apps/v1/namespaces/{site.name}/replicasets"
        labels = {"app": name}
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        spec: dict[str, Any] = {
            "schedulerName": site.name,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        template = {"metadata": {"labels": labels}, "spec": spec}
        meta = {"name": name}
        body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta}
        wanted = {"replicas": number, "selector": {"matchLabels": labels}, "template": template}
        site.create(self._path, {**body, "spec": wanted})

    def pods(self, story: Story) -> list[Moment]:
        return [p for p in story.pods() if p.name.startswith(f"{self._name}-") and p.is_there]

    def run(self, story: Story) -> bool:
        """Return whether all replicas run."""
        pods = self.pods(story)
        return len(pods) == self.number and all(p.phase == "Running" for p in pods)

    def end(self) -> None:
        """Scale the ReplicaSet to zero and wait until its pods have ended."""
        self._site.api.patch(f"{self._path}/{self._name}", {"spec": {"replicas": 0}})
        self._site.story.until(lambda story: not self.pods(story), "all replicas are gone")


@pytest.fixture
def web(site: Site) -> Iterator[Replicas]:
    """Yield two pods on each of four nodes of four CPUs.

    Half of the CPUs are idle, but no whole node is idle.
    """
    for name in site.nodes(4):
        site.pod(f"filler-{name}", cpus=2, nodeName=name)
    replicas = Replicas(site, "web", 8)
    yield replicas
    replicas.end()


def begin(site: Site, web: Replicas) -> Scheduler:
    """Start a scheduler, wait until all replicas run, and delete the filler pods."""
    scheduler = site.scheduler("--config", str(site.file("moving.yaml", MODEL)))
    scheduler.begun()
    site.story.until(web.run, "all replicas run")
    for pod in site.story.pods():
        if pod.name.startswith("filler-"):
            site.delete_pod(pod.name)
    return scheduler


def moves_of(site: Site, group: str) -> str:
    """Return the record of moves on a PodGroup, or an empty text."""
    (found,) = (each for each in site.groups() if each["metadata"]["name"] == group)
    return str(found["metadata"].get("annotations", {}).get(MOVES, ""))


def consolidations(site: Site, number: int) -> list[Any]:
    """Return the events of moves once their number reaches `number`, and an empty list before."""
    events = site.api.items(f"/api/v1/namespaces/{site.name}/events")
    found = [event for event in events if event["reason"] == "Consolidation"]
    return found if len(found) >= number else []


def assert_nothing_moves(site: Site, scheduler: Scheduler) -> None:
    """Check that no pod moves in ten sessions, each triggered by a pod that fits nowhere."""
    before = {p.uid: p.node for p in site.story.pods()}
    for i in range(10):
        number = scheduler.metric("optsched_sessions_total")
        site.pod(f"huge-{i}", cpus=99)
        until(lambda n=number: scheduler.metric("optsched_sessions_total") > n, "a session")
    after = {p.uid: p.node for p in site.story.pods() if not p.name.startswith("huge-")}
    assert after == before


def test_pods_move_and_all_run_in_the_end(site: Site, web: Replicas) -> None:
    scheduler = begin(site, web)
    first = {p.uid for p in web.pods(site.story)}
    site.gang("large", 2, cpus=4)
    site.await_bound("large", 2)
    site.story.until(web.run, "all replicas run again")
    stayed = first & {p.uid for p in web.pods(site.story)}
    assert len(first - stayed) == 4, "two nodes of two pods each"
    scheduler.await_metric(4, "optsched_evictions_total", action="consolidation")
    told = until(lambda: consolidations(site, 4), "four are told")
    assert len(told) == 4
    assert all(f"{site.name}/large; capacity on {site.name}-" in e["message"] for e in told)
    assert_nothing_moves(site, scheduler)
    (group,) = site.groups()
    name = group["metadata"]["name"]
    until(lambda: not moves_of(site, name), "no record is left")
    site.story.assert_within(site.cpus)
    site.story.assert_bound_once()


def test_places_are_kept_over_a_restart(site: Site, web: Replicas) -> None:
    """The moving pods terminate slowly; a restarted scheduler knows their target nodes."""
    scheduler = begin(site, web)
    for pod in web.pods(site.story):
        site.change_pod(pod.name, {"metadata": {"finalizers": ["optsched.io/test"]}})
    old = web.pods(site.story)
    site.gang("large", 2, cpus=4)
    until(lambda: moves_of(site, "large"), "a record")
    # Moves of recreated pods are no longer in the record, but the test counts all moves below.
    scheduler.kill()
    scheduler = site.scheduler("--config", str(site.file("moving.yaml", MODEL)))
    for pod in old:
        site.change_pod(pod.name, {"metadata": {"finalizers": None}})
    site.await_bound("large", 2)
    site.story.until(web.run, "all replicas run again")
    assert len({p.uid for p in old} - {p.uid for p in web.pods(site.story)}) == 4
    scheduler.begun()
    assert_nothing_moves(site, scheduler)
    site.story.assert_within(site.cpus)
