"""Short schedules of faults; `make e2e-faults` runs longer ones."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import warnings
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from optsched.api.kinds import JOB, NODE, POD_GROUP, Ref, collection_path
from optsched.kube.client.client import connect
from optsched.kube.client.errors import ServerFault
from tests.faults.admission import USERS, register_webhook
from tests.faults.door import Door, Stopping
from tests.faults.invariants import find_admitted, find_held_up
from tests.faults.node_knowledge import LAG_S
from tests.faults.run import Run
from tests.faults.schedule import SHORT, Flaw, Submission, draw_schedule, draw_waves
from tests.faults.stops import StopPoints
from tests.faults.user import User
from tests.support.api import server_of, until
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.live import Site

pytestmark = pytest.mark.e2e


def test_what_must_hold_holds_under_faults(
    control_plane: ControlPlane, site: Site, tmp_path: Path
) -> None:
    schedule = draw_schedule(1, 4.0, every_s=1.0, kinds=SHORT)
    result = Run(control_plane, site, schedule, tmp_path, 0.05).play()
    assert result.problems == []
    assert result.num_binds > 0
    assert result.num_denials == sum(bool(each.flaw) for each in schedule.submissions)
    assert result.num_unreviewed > 0


def test_a_scheduler_killed_between_writes_of_a_plan_leaves_nothing_half(
    control_plane: ControlPlane, site: Site, tmp_path: Path
) -> None:
    """The scheduler is killed between two binds of a gang, and between two evictions."""
    schedule = draw_waves(1)
    result = Run(control_plane, site, schedule, tmp_path, 0.0).play()
    assert result.problems == []
    assert result.missed == ()
    assert result.num_evictions > 0


def test_a_pod_bound_to_a_deleted_node_runs_when_the_node_is_there_again(site: Site) -> None:
    (node,) = site.nodes(1)
    site.pod("late")
    site.api.delete(f"/api/v1/nodes/{node}")
    site.api.bind(site.name, "late", node)
    site.register(node, cpus=4)
    site.story.until(lambda s: [pod.phase for pod in s.pods()] == ["Running"], "the pod runs")


def test_a_closed_proxy_leaves_no_socket_to_later_tests(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):
            with Proxy(control_plane.kubeconfig, tmp_path) as proxy:
                place = urlsplit(server_of(proxy.kubeconfig)).netloc
                clients = [http.client.HTTPConnection(place) for _ in range(3)]
                for client in clients:
                    client.request("GET", "/api/v1/pods?watch=1")
                proxy.await_watch("pods")
            for client in clients:
                client.close()
        del proxy, clients, client
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_a_bind_to_a_node_that_a_process_knows_as_cordoned_is_found(
    site: Site, tmp_path: Path
) -> None:
    """A client in place of a scheduler binds a pod to a cordoned node; the checker finds it."""
    (node,) = site.nodes(1)
    for name in ("early", "late"):
        site.pod(name)
    stopping = Stopping(StopPoints(()), lambda _: None)
    door = site.keep(Door(site.kubeconfig, tmp_path / "door", "seed", 0.0, stopping))

    async def play() -> None:
        async with connect(str(door.kubeconfig)) as client:
            listed = await client.list_page(NODE, 500)
            version = listed.resource_version
            await client.bind(site.name, "early", "", node)
            site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
            async with aclosing(client.watch_lines(NODE, version)) as lines:
                async for line in lines:
                    found = json.loads(line)["object"]
                    if found["metadata"]["name"] == node and found["spec"].get("unschedulable"):
                        break
            await asyncio.sleep(LAG_S + 0.2)
            assert door.late_binds == []
            await client.bind(site.name, "late", "", node)

    asyncio.run(play())
    (sentence,) = door.late_binds
    assert sentence.startswith(f"late was bound to {node} ")


def test_an_invalid_job_that_no_webhook_reviews_is_found(site: Site) -> None:
    """The API server admits all jobs, because the failure policy is not Fail."""
    register_webhook(site, "Ignore")
    submissions = (
        Submission(0.0, "good", 1, 1.0),
        Submission(0.0, "bad", 1, 1.0, Flaw.MIN_AVAILABLE),
    )
    with User(site, submissions, lambda: False) as user:
        until(lambda: not user.find_left(), "the jobs are stored")
    assert user.admitted == {"bad"}
    jobs = site.api.items(collection_path(JOB, site.name))
    assert find_admitted(jobs, submissions) == [
        "job bad was admitted with an invalid min-available",
        "job good was admitted without the record of its submitter",
    ]


def test_binds_and_evictions_need_no_webhook_and_a_request_that_does_is_found(
    site: Site, tmp_path: Path
) -> None:
    """A client in place of a scheduler writes while the webhook is away."""
    (node,) = site.nodes(1)
    site.pod("early")
    stopping = Stopping(StopPoints(()), lambda _: None)
    user = USERS["scheduler"]
    door = site.keep(Door(site.kubeconfig, tmp_path / "door", "seed", 0.0, stopping, user))
    register_webhook(site)
    kind = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    group = {**kind, "metadata": {"generateName": "group-"}, "spec": {"minMember": 1}}

    async def play() -> None:
        async with connect(str(door.kubeconfig)) as client:
            # API servers apply new configurations within moments.
            async with asyncio.timeout(30.0):
                while not door.unreviewed:
                    with suppress(ServerFault):
                        await client.create(Ref(POD_GROUP, site.name, ""), group)
            await client.bind(site.name, "early", "", node)
            await client.evict(site.name, "early", "")

    asyncio.run(play())
    key = "POST /apis/scheduling.volcano.sh/v1beta1/namespaces/podgroups"
    assert list(door.unreviewed) == [key]
    (sentence,) = find_held_up("scheduler", door.unreviewed)
    assert sentence.endswith(f"requests {key} of the scheduler waited for the webhook")
