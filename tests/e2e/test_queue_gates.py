"""Scheduling gates hide pods from the cluster autoscaler until their queue has capacity."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.admission.services import GATE_ASKED, SERVICE_OF, configuration
from optsched.api.kinds import MUTATING_WEBHOOK_CONFIGURATION, collection_path
from tests.support.api import until
from tests.support.story import GROUP_NAME
from tests.support.webhooks import Webhook, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.api import Raw
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

GATE = "scheduling.volcano.sh/queue-allocation-gate"
OTHER = "example.org/other"
POLICY = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity}, {name: nodeorder}]
"""


@contextmanager
def gating(site: Site, folder: Path) -> Iterator[None]:
    """Run a webhook that the API server calls for pods which request a scheduling gate."""
    asked = configuration(replace(SERVICE_OF["/pods/mutate"], condition=GATE_ASKED))
    path = collection_path(MUTATING_WEBHOOK_CONFIGURATION)
    site.api.post(path, asked)
    flags = ("--feature-gates=SchedulingGatesQueueAdmission=true", "--scheduler-name", site.name)
    only = ("--enabled-admission", "/pods/mutate", "--webhook-namespace", site.name)
    webhook = Webhook(site.kubeconfig, folder / "webhook.log", free_port(), *flags, *only)
    try:
        webhook.begin()
        yield
        webhook.stop()
    finally:
        site.api.delete(f"{path}/{asked['metadata']['name']}")
        if webhook.process.poll() is None:
            webhook.kill()


def gang(site: Site, name: str, size: int, queue: str, *gates: str) -> None:
    site.group(name, size, queue)
    marks = {GROUP_NAME: name, GATE: "true"}
    for i in range(size):
        held = [{"name": gate} for gate in gates]
        site.pod(f"{name}-{i}", annotations=marks, schedulingGates=held)


def gates(site: Site, name: str) -> list[str]:
    return [each["name"] for each in pod(site, name)["spec"].get("schedulingGates", ())]


def pod(site: Site, name: str) -> Raw:
    return site.api.get(f"/api/v1/namespaces/{site.name}/pods/{name}")


def is_wanted(site: Site, name: str) -> bool:
    """Return whether the cluster autoscaler sees an unschedulable pod."""
    told = pod(site, name)["status"].get("conditions", ())
    facts = {each["type"]: each.get("reason") for each in told}
    return not gates(site, name) and facts.get("PodScheduled") == "Unschedulable"


@pytest.mark.parametrize("solver", ["none", "cpsat"])
def test_gates_open_when_the_queue_has_room(site: Site, tmp_path: Path, solver: str) -> None:
    site.nodes(1, cpus=4)
    queue = site.queue("q", capability={"cpu": "6"})
    policy = site.file("policy.conf", POLICY)
    with gating(site, tmp_path):
        until(lambda: is_held(site), "pods are held back")
        gang(site, "first", 4, queue)
        gang(site, "foreign", 1, queue, OTHER)
        assert gates(site, "first-0") == [GATE]
        assert gates(site, "foreign-0") == [OTHER, GATE]
        scheduler = site.scheduler("--config", str(policy), "--solver", solver)
        site.await_bound("first", 4)
        # The node is full, but the queue has idle capacity.
        gang(site, "second", 2, queue)
        until(lambda: all(is_wanted(site, f"second-{i}") for i in range(2)), "it is seen")
        # The ungated pods count against the queue, so the queue is full.
        gang(site, "third", 1, queue)
        site.await_waits("third", "NotEnoughResources")
        site.await_waits("foreign", "Gated")
        assert gates(site, "third-0") == [GATE]
        site.complete("first")
        site.await_bound("second", 2)
        site.await_bound("third", 1)
        assert gates(site, "foreign-0") == [OTHER, GATE]
        site.change_pod("foreign-0", {"spec": {"schedulingGates": [{"name": GATE}]}})
        site.await_bound("foreign", 1)
        scheduler.stop()


def is_held(site: Site) -> bool:
    """Return whether the API server already calls the webhook."""
    site.pod("probe", scheduler=site.name, annotations={GATE: "true"})
    found = gates(site, "probe")
    site.delete_pod("probe")
    return bool(found)
