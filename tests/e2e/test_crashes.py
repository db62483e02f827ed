"""Processes killed at random moments lose no object, and create or bind no object twice.

Two schedulers, two controller managers and the webhook run. One replica of each leads. The leaders
are killed repeatedly while jobs, flows, CronJobs, bare pods and queues change.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.support.api import Api, Refused, until
from tests.support.chronicle import Chronicle
from tests.support.live import FAIL, Process, Site
from tests.support.livejobs import LiveJob
from tests.support.proxy import every, is_write
from tests.support.vcjobs import job, policy, task
from tests.support.webhooks import SYSTEM, Webhook, free_port, make_namespace, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane

pytestmark = pytest.mark.e2e

TIMES: Final = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "300ms"),
)
RUN: Final = "optsched.io/run-seconds"
NUM_GOOD, NUM_BAD, NUM_ALONE = 10, 4, 4
NUM_ROUNDS: Final = 4
PLUGINS: Final[dict[str, Any]] = {"plugins": {"svc": [], "env": []}}
ALLOWED_S: Final = 120.0
FOLLOWED: Final = (kinds.POD, kinds.POD_GROUP, kinds.JOB, kinds.SERVICE, kinds.CONFIG_MAP)


class Replicas:
    """Two processes of one service, one of which leads; killed processes are replaced."""

    def __init__(self, spawn: Callable[[], Process], leads: str) -> None:
        self._spawn = spawn
        self._leads = leads
        self.processes = [spawn(), spawn()]

    def kill_leader(self) -> None:
        """Kill the leader, as a crash would, and start another process."""
        leader = until(self._leader, "one of them leads", ALLOWED_S)
        leader.kill()
        self.processes.remove(leader)
        self.processes.append(self._spawn())

    def _leader(self) -> Process | None:
        return next((each for each in self.processes if self._is_leading(each)), None)

    def _is_leading(self, process: Process) -> bool:
        try:
            return bool(process.port) and process.metric(self._leads) == 1
        except OSError:
            return False  # the process has just started


def pod_of(name: str, seconds: str) -> dict[str, Any]:
    """Return a task whose pods take one CPU each.

    The pods succeed after the given seconds, or fail if `seconds` is empty.
    """
    found = task(name, 3)
    marks = {RUN: seconds} if seconds else {FAIL: "1"}
    found["template"]["metadata"] = {"annotations": marks}
    amounts = {"requests": {"cpu": "1"}}
    found["template"]["spec"]["containers"][0]["resources"] = amounts
    return found


def submit(site: Site) -> tuple[list[LiveJob], list[LiveJob]]:
    """Create jobs that succeed, and jobs that fail after all their retries; return both lists."""
    good = [
        LiveJob(site, job(pod_of("a", "1"), name=f"good-{i}", **PLUGINS)) for i in range(NUM_GOOD)
    ]
    retried = [policy("PodFailed", "RestartJob")]
    bad = [
        LiveJob(
            site, job(pod_of("a", ""), name=f"bad-{i}", policies=retried, maxRetry=2, **PLUGINS)
        )
        for i in range(NUM_BAD)
    ]
    for i in range(NUM_ALONE):
        site.pod(f"alone-{i}", annotations={RUN: "1"}, nodeSelector={"site": site.name})
    return good, bad


def begin_flows(site: Site) -> None:
    """Create a flow of three consecutive jobs, and a CronJob whose schedule is overdue."""
    spec = {"schedulerName": site.name, "minAvailable": 3, "tasks": [pod_of("t", "0.5")]}
    spec["tasks"][0]["template"]["spec"]["nodeSelector"] = {"site": site.name}
    templates = collection_path(kinds.JOB_TEMPLATE, site.name)
    flows = []
    for i, name in enumerate("xyz"):
        head = {"apiVersion": kinds.JOB_TEMPLATE.api_version, "kind": kinds.JOB_TEMPLATE.kind}
        site.api.post(templates, {**head, "metadata": {"name": name}, "spec": spec})
        waits = {"dependsOn": {"targets": ["xyz"[i - 1]]}} if i else {}
        flows.append({"name": name, **waits})
    head = {"apiVersion": kinds.JOB_FLOW.api_version, "kind": kinds.JOB_FLOW.kind}
    body = {**head, "metadata": {"name": "flow"}, "spec": {"flows": flows}}
    site.api.post(collection_path(kinds.JOB_FLOW, site.name), body)
    head = {"apiVersion": kinds.CRON_JOB.api_version, "kind": kinds.CRON_JOB.kind}
    timetable = {"schedule": "0 0 1 * *", "jobTemplate": {"spec": spec}}
    body = {**head, "metadata": {"name": "tick"}, "spec": timetable}
    site.api.post(collection_path(kinds.CRON_JOB, site.name), body)
    path = object_path(kinds.CRON_JOB, site.name, "tick")
    behind = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}
    site.api.patch(f"{path}/status", behind)


def close(site: Site, queue: str) -> None:
    """Create a Command that closes a queue, as vcctl does."""
    found = site.api.get(object_path(kinds.QUEUE, None, queue))
    api = kinds.QUEUE.api_version
    target = {"apiVersion": api, "kind": "Queue", "name": queue, "uid": found["metadata"]["uid"]}
    body = {
        "apiVersion": kinds.COMMAND.api_version,
        "kind": kinds.COMMAND.kind,
        "metadata": {"name": "close"},
        "action": "CloseQueue",
        "target": target,
    }
    site.api.post(collection_path(kinds.COMMAND, site.name), body)


_SITES: Final = count(1)


@pytest.fixture
def site(own_plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    api = Api(own_plane.kubeconfig)
    make_namespace(api, SYSTEM)
    with Site(f"crashes-{next(_SITES)}", api, own_plane.kubeconfig, tmp_path) as site:
        yield site
    api.close()


@pytest.fixture
def hook(site: Site, tmp_path: Path) -> Iterator[Callable[[], Webhook]]:
    """Yield a function that starts the webhook, always at the same address."""
    port, started = free_port(), list[Webhook]()

    def start() -> Webhook:
        log = tmp_path / f"webhook-{len(started)}.log"
        started.append(Webhook(site.kubeconfig, log, port))
        return started[-1].begin()

    with registered(site.api):
        yield start
    started[-1].stop()


def is_asked(site: Site) -> bool:
    """Return whether API servers reach the webhook."""
    head = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue", "spec": {"weight": 1}}
    try:
        path = collection_path(kinds.QUEUE)
        site.api.post(f"{path}?dryRun=All", {**head, "metadata": {"name": "probe"}})
    except Refused as e:
        return "failed calling webhook" not in str(e.args)
    return True


def test_leaders_that_are_killed_again_and_again_lose_and_double_nothing(
    site: Site, hook: Callable[[], Webhook]
) -> None:
    webhook = hook()
    until(lambda: is_asked(site), "the webhook is asked", ALLOWED_S)
    site.nodes(2, cpus=8)
    queue = site.queue("q")
    election = ("--leader-elect", "--lock-namespace", site.name, *TIMES)
    controllers = Replicas(
        lambda: site.spawn_controllers(*election), "optsched_controllers_leading"
    )
    schedulers = Replicas(lambda: site.spawn(*election, "--loners", "wait"), "optsched_leading")
    default = object_path(kinds.QUEUE, None, "default")
    until(lambda: site.api.find(default), "the default queue is there", ALLOWED_S)
    paths = {kind: collection_path(kind, site.name) for kind in FOLLOWED}
    chance = random.Random(17)
    with Chronicle(site.api, paths.values()) as chronicle:
        good, bad = submit(site)
        begin_flows(site)
        close(site, queue)
        for number in range(NUM_ROUNDS):
            # The kill comes at a random moment. Another job ensures that the processes are at work.
            until(lambda: is_asked(site), "the webhook is asked", ALLOWED_S)
            good.append(LiveJob(site, job(pod_of("a", "1"), name=f"more-{number}", **PLUGINS)))
            seen = len(site.story.moments()) + chance.randrange(1, 12)
            site.story.until(
                lambda s, n=seen: len(s.moments()) >= n, "something happens", ALLOWED_S
            )
            order = [controllers, schedulers]
            chance.shuffle(order)
            for replicas in order[: 1 + number % 2]:
                replicas.kill_leader()
            if number == 1:
                webhook.kill()
                hook()
        await_the_end(site, good, bad, queue)
    for each in (*controllers.processes, *schedulers.processes):
        each.begin()
    assert_once(chronicle, paths, good, bad)
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


BUSY: Final = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "TooManyRequests",
    "message": "too busy",
    "code": 429,
}


def test_answers_that_are_lost_or_say_no_lose_and_double_nothing(site: Site) -> None:
    site.nodes(2, cpus=8)
    queue, proxy = site.queue("q"), site.proxy()
    site.spawn("--loners", "wait").begin()
    default = object_path(kinds.QUEUE, None, "default")
    until(lambda: site.api.find(default), "the default queue is there", ALLOWED_S)
    paths = {kind: collection_path(kind, site.name) for kind in FOLLOWED}
    with (
        Chronicle(site.api, paths.values()) as chronicle,
        proxy.losing(every(5, is_write)) as lost,
        proxy.answering(every(7, is_write), BUSY),
    ):
        site.spawn_controllers(kubeconfig=proxy.kubeconfig).begin()
        good, bad = submit(site)
        begin_flows(site)
        close(site, queue)
        await_the_end(site, good, bad, queue)
    assert paths[kinds.POD] in {path.partition("?")[0] for path in lost}
    assert_once(chronicle, paths, good, bad)
    site.story.assert_bound_once()


def await_the_end(site: Site, good: list[LiveJob], bad: list[LiveJob], queue: str) -> None:
    """Wait until all jobs, flows and queues have reached their final states."""
    for one in good:
        one.await_phase("Completed", ALLOWED_S)
    for one in bad:
        one.await_phase("Failed", ALLOWED_S)
    flow = object_path(kinds.JOB_FLOW, site.name, "flow")

    def has_succeeded() -> bool:
        state = site.api.get(flow).get("status", {}).get("state", {})
        return bool(state.get("phase") == "Succeed")

    until(has_succeeded, "the flow has succeeded", ALLOWED_S)
    tick = object_path(kinds.CRON_JOB, site.name, "tick")
    until(
        lambda: site.api.get(tick)["status"].get("lastSuccessfulTime"),
        "the timetable has run",
        ALLOWED_S,
    )
    path = object_path(kinds.QUEUE, None, queue)
    until(lambda: site.api.get(path)["status"].get("state") == "Closed", "it is closed", ALLOWED_S)
    until(lambda: not site.api.items(collection_path(kinds.COMMAND, site.name)), "it is done")
    site.story.until(
        lambda s: sum(p.phase == "Succeeded" for p in s.pods() if "alone" in p.name) == NUM_ALONE,
        "pods alone have ended",
        ALLOWED_S,
    )
    until(lambda: all_alone(site), "gangs of jobs are gone", ALLOWED_S)


def all_alone(site: Site) -> bool:
    """Return whether only PodGroups of bare pods remain."""
    return all(group["metadata"]["name"].startswith("podgroup-") for group in site.groups())


def assert_once(
    chronicle: Chronicle, paths: dict[kinds.Kind, str], good: list[LiveJob], bad: list[LiveJob]
) -> None:
    """Check that pods were created once per job version, and other objects once per job."""
    made = Counter(
        (pod["metadata"]["name"], pod["metadata"]["annotations"].get("volcano.sh/job-version"))
        for pod in chronicle.all(paths[kinds.POD])
    )
    assert set(made.values()) == {1}
    versions = Counter(name for name, _ in made)
    pods = {f"{one.name}-a-{i}": 1 for one in good for i in range(3)}
    pods |= {f"{one.name}-a-{i}": 2 for one in bad for i in range(3)}
    assert {name: versions[name] for name in pods} == pods
    for one in (*good, *bad):
        retries = 2 if one in bad else 0
        assert one.status.get("retryCount", 0) == retries
    groups = chronicle.uids(paths[kinds.POD_GROUP])
    for one in good:
        assert len(groups[f"{one.name}-{one.uid}"]) == 1
    for one in bad:
        assert len(groups[f"{one.name}-{one.uid}"]) == 2
    for kind, name in ((kinds.SERVICE, "{}"), (kinds.CONFIG_MAP, "{}-svc"), (kinds.JOB, "{}")):
        uids = chronicle.uids(paths[kind])
        assert {one.name: len(uids[name.format(one.name)]) for one in (*good, *bad)} == {
            one.name: 1 for one in (*good, *bad)
        }
    jobs = chronicle.uids(paths[kinds.JOB])
    others = {name for name in jobs if name.startswith(("flow-", "tick-"))}
    assert {name for name in others if name.startswith("flow-")} == {f"flow-{n}" for n in "xyz"}
    assert len(others) == 4
    assert all(len(jobs[name]) == 1 for name in others)
    alone = [name for name in groups if name.startswith("podgroup-")]
    assert len(alone) == NUM_ALONE
    assert all(len(groups[name]) == 1 for name in alone)
