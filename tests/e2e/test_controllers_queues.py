"""Commands, parents and remaining PodGroups determine the states of queues on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until
from tests.support.live import QUEUES

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands"
MARK = "volcano.sh/closed-by-parent"


def state(site: Site, name: str) -> str:
    return str(site.api.get(f"{QUEUES}/{name}").get("status", {}).get("state", ""))


def await_state(site: Site, name: str, wanted: str) -> None:
    until(lambda: state(site, name) == wanted, f"{name} is {wanted}")


def operate(site: Site, name: str, action: str) -> None:
    """Create a Command as vcctl does, and wait until the controller has executed it."""
    queue = site.api.get(f"{QUEUES}/{name}")
    target: dict[str, Any] = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "name": name,
        "uid": queue["metadata"]["uid"],
    }
    path = COMMANDS.format(site.name)
    made = site.api.post(
        path,
        {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"generateName": f"{name}-{action.lower()}-"},
            "action": action,
            "target": target,
        },
    )
    until(
        lambda: site.api.find(f"{path}/{made['metadata']['name']}") is None,
        f"{action} for {name} is seen to",
    )


def test_a_queue_with_work_is_closing_until_the_work_is_done(site: Site) -> None:
    site.nodes(1)
    queue = site.queue("q")
    controllers = site.controllers()
    scheduler = site.scheduler()
    await_state(site, queue, "Open")
    site.gang("works", 2, queue=queue)
    site.await_phase("works", "Running")

    operate(site, queue, "CloseQueue")
    assert state(site, queue) == "Closing"
    # The scheduler may receive pods before it receives their queue.
    site.group("late", 1, queue)
    site.await_waits("late", "QueueNotOpen")
    site.members("late", range(1))
    until(lambda: site.reasons("late-0")["QueueNotOpen"], "its pod is told")
    site.remove("late")
    site.complete("works")
    await_state(site, queue, "Closed")

    operate(site, queue, "OpenQueue")
    await_state(site, queue, "Open")
    site.gang("next", 1, queue=queue)
    site.await_bound("next", 1)
    for reason in ("OpenQueue", "CloseQueue"):
        site.await_event(queue, reason=reason, namespace="default")
    until(
        lambda: site.api.get(f"{QUEUES}/{queue}")["status"].get("running") == 1,
        "the scheduler's counts are there beside the state",
    )
    controllers.stop()
    scheduler.stop()


def test_a_parent_closes_and_opens_those_below_it(site: Site) -> None:
    parent = site.queue("dept")
    child = site.queue("team", parent=parent)
    own = site.queue("own", parent=parent)
    controllers = site.controllers()
    for name in (parent, child, own):
        await_state(site, name, "Open")
    until(
        lambda: site.api.get(f"{QUEUES}/{parent}")["spec"].get("parent") == "root",
        "a queue without a parent gets root",
    )
    operate(site, own, "CloseQueue")
    operate(site, parent, "CloseQueue")
    await_state(site, parent, "Closed")
    await_state(site, child, "Closed")
    assert site.api.get(f"{QUEUES}/{child}")["metadata"]["annotations"][MARK] == "true"
    operate(site, child, "OpenQueue")
    assert state(site, child) == "Closed"
    event = site.await_event(child, f"its parent {parent}", reason="OpenQueue", namespace="default")
    assert event["type"] == "Warning"

    operate(site, parent, "OpenQueue")
    await_state(site, parent, "Open")
    await_state(site, child, "Open")
    assert state(site, own) == "Closed"
    until(
        lambda: not site.api.get(f"{QUEUES}/{child}")["metadata"].get("annotations"),
        "the mark goes",
    )
    controllers.stop()


def test_an_unknown_state_is_put_right_and_the_root_stays_open(site: Site) -> None:
    queue = site.queue("q")
    scheduler = site.scheduler()
    until(lambda: site.api.find(f"{QUEUES}/root"), "the queues that are always there")
    scheduler.stop()
    controllers = site.controllers()
    await_state(site, queue, "Open")
    site.api.patch(f"{QUEUES}/{queue}/status", {"status": {"state": "Unknown"}})
    until(lambda: site.events(queue, "OpenQueue", "default"), "it is told")
    await_state(site, queue, "Open")
    await_state(site, "root", "Open")
    operate(site, "root", "CloseQueue")
    assert state(site, "root") == "Open"
    assert not site.api.get(f"{QUEUES}/root")["spec"].get("parent")
    controllers.stop()


def test_a_queue_at_rest_is_not_written(site: Site) -> None:
    queue = site.queue("q")
    controllers = site.controllers()
    await_state(site, queue, "Open")
    until(lambda: site.api.get(f"{QUEUES}/{queue}")["spec"].get("parent"), "it has its parent")
    # The metric counts a write after its response, so only a later Command proves the count final.
    operate(site, queue, "SyncQueue")
    until(
        lambda: controllers.metric("optsched_controller_waiting") == 0,
        "others on the plane are at rest",
    )
    before = controllers.num_writes("queues")
    for value in "abc":
        site.api.patch(f"{QUEUES}/{queue}", {"metadata": {"labels": {"asked-again": value}}})
    operate(site, queue, "SyncQueue")
    assert controllers.num_writes("queues") == before
    controllers.stop()
