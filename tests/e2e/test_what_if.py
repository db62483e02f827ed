"""The predictions for hypothetical jobs match what the scheduler does later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from tests.support.api import until
from tests.support.live import SITE_LABEL
from tests.support.livejobs import LiveJob
from tests.support.vcjobs import container, job, task

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.live import Site
    from tests.support.proxy import Proxy

    Raw = dict[str, Any]

pytestmark = pytest.mark.e2e


def asking(name: str, replicas: int, cpu: int, **annotations: str) -> Raw:
    """Return a job whose pods request the given CPUs each.

    `annotations` are names with `_` for `-` and their values.
    """
    template = {"spec": {"containers": [container(resources={"requests": {"cpu": str(cpu)}})]}}
    body = job(task("w", replicas, template=template), name=name, minAvailable=replicas)
    marks = {f"optsched.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    body["metadata"]["annotations"] = marks
    return body


class Asking:
    """A user whose requests pass a recording proxy."""

    def __init__(self, site: Site, proxy: Proxy, folder: Path) -> None:
        self.site = site
        self.methods: list[tuple[str, str]] = []
        self._proxy, self._folder = proxy, folder
        proxy.hold(self._note)

    def _note(self, method: str, path: str) -> bool:
        self.methods.append((method, path))
        return False

    def __call__(self, *bodies: Raw, code: int) -> list[Raw]:
        """Return the predictions for jobs, after adapting the jobs to the site."""
        files = []
        for body in bodies:
            body["metadata"]["namespace"] = self.site.name
            files += ["-f", self.file(body)]
        names = ["--scheduler-name", self.site.name]
        found: list[Raw] = self.optsched("what-if", *names, *files, code=code)["asked"]
        return found

    def file(self, body: Raw) -> str:
        """Write a job that is adapted to the site to a file, and return its path."""
        body["metadata"].pop("uid", None)
        if body["kind"] == "Job":
            self.site.suit(body)
        path = self._folder / f"{body['metadata']['name']}.json"
        path.write_text(json.dumps(body))
        return str(path)

    def optsched(self, *words: str, code: int) -> Raw:
        """Return the JSON output of a command that ends with a code."""
        place = ["--kubeconfig", str(self._proxy.kubeconfig), "-o", "json"]
        result = CliRunner().invoke(main, [*words, *place])
        assert result.exit_code == code, result.output
        found: Raw = json.loads(result.stdout)
        return found


@pytest.fixture
def ask(site: Site, tmp_path: Path) -> Asking:
    return Asking(site, site.proxy(), tmp_path)


def test_what_is_said_becomes_true_and_asking_writes_nothing(site: Site, ask: Asking) -> None:
    site.nodes(2, cpus=4)
    site.controllers()
    site.scheduler()
    busy = LiveJob(site, asking("busy", 1, 4, running_estimate="2h"))
    busy.await_phase("Running")
    busy_on = busy.pods()["w-0"]["spec"]["nodeName"]

    [fits] = ask(asking("fits", 2, 2), code=0)
    [later] = ask(asking("later", 2, 4), code=8)
    [never] = ask(asking("never", 3, 4), code=9)
    assert (fits["starts"], later["starts"], never["starts"]) == ("now", "later", "never")
    assert fits["name"] == f"{site.name}/fits"
    assert set(fits["places"].values()).isdisjoint({busy_on})
    assert later["expectedStart"] > busy.raw["metadata"]["creationTimestamp"]
    assert "cpu" in later["reason"]["message"]

    writes = [path for method, path in ask.methods if method != "GET"]
    assert writes
    assert all(path.endswith("?dryRun=All") for path in writes)
    assert not any("/secrets" in path for _, path in ask.methods)
    assert site.api.items(busy.jobs) == [busy.raw]

    live = LiveJob(site, asking("fits", 2, 2))
    live.await_phase("Running")
    nodes = {name: pod["spec"]["nodeName"] for name, pod in live.pods().items()}
    assert {f"{site.name}/fits-{name}": node for name, node in nodes.items()} == fits["places"]


def test_who_is_named_as_a_victim_is_evicted(site: Site, ask: Asking) -> None:
    site.nodes(2, cpus=4)
    high = site.priority("high", 100)
    site.controllers()
    site.scheduler()
    modest = asking("modest", 8, 1)
    modest["spec"]["minAvailable"] = 1
    running = LiveJob(site, modest)
    running.await_count(running=8)

    def urgent() -> Raw:
        body = asking("urgent", 1, 1)
        body["spec"]["priorityClassName"] = high
        return body

    [answer] = ask(urgent(), code=0)
    assert answer["starts"] == "soon"
    [victim] = answer["evictions"]
    assert victim["action"] == "preempt"
    assert victim["pod"].startswith(f"{site.name}/modest-w-")
    assert running.status["running"] == 8
    LiveJob(site, urgent()).await_phase("Running")
    running.await_count(running=7)


def test_one_that_is_not_let_in_is_told_what_its_job_is_told(site: Site, ask: Asking) -> None:
    site.nodes(1, cpus=4)
    site.controllers()
    site.scheduler()
    LiveJob(site, asking("busy", 1, 4)).await_phase("Running")
    queue = site.queue("alone")
    more = asking("more", 1, 4)
    more["spec"]["queue"] = queue
    [answer] = ask(more, code=8)
    assert answer["reason"]["code"] == "ClusterOvercommitted"
    live = LiveJob(site, more)
    until(
        lambda: live.status.get("state", {}).get("reason") == "ClusterOvercommitted",
        "the job is told the same",
    )
    assert live.pods() == {}

    ask.methods.clear()
    told = ask.optsched("job", "explain", "more", "-n", site.name, "-N", "more", code=8)
    assert told["reason"]["code"] == "ClusterOvercommitted"
    assert (told["queue"], told["position"], told["numWaiting"]) == (queue, 1, 1)
    assert {method for method, _ in ask.methods} == {"GET"}


def test_admission_is_asked(site: Site, ask: Asking) -> None:
    """A LimitRange sets default requests, and the prediction names a missing namespace."""
    site.nodes(1, cpus=4)
    limits = [{"type": "Container", "defaultRequest": {"cpu": "5"}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "five"}}
    path = f"/api/v1/namespaces/{site.name}/limitranges"
    site.api.post(path, {**body, "spec": {"limits": limits}})
    modest = asking("modest", 1, 1)
    modest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"] = {}
    [answer] = ask(modest, code=9)
    assert answer["reason"]["code"] == "Impossible"
    assert "5 cpu" in answer["reason"]["message"]

    alone = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "alone"},
        "spec": {
            "schedulerName": site.name,
            "nodeSelector": {SITE_LABEL: site.name},
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    [answer] = ask(alone, code=9)
    assert (answer["name"], answer["reason"]["code"]) == (f"{site.name}/pod:alone", "Impossible")
    assert "5 cpu" in answer["reason"]["message"]
    alone["metadata"] = {"name": "alone", "namespace": "nowhere"}
    [answer] = ask.optsched(
        "what-if", "--scheduler-name", site.name, "-f", ask.file(alone), code=9
    )["asked"]
    assert answer["reason"]["code"] == "RefusedByAPIServer"
    assert 'namespaces "nowhere" not found' in answer["reason"]["message"]

    lost = asking("lost", 1, 1)
    lost["metadata"]["namespace"] = "nowhere"
    file = ask.file(lost)
    [answer] = ask.optsched("what-if", "-f", file, code=9)["asked"]
    assert answer["reason"]["code"] == "RefusedByAPIServer"
    assert 'namespaces "nowhere" not found' in answer["reason"]["message"]


def test_a_quota_of_the_namespace_is_named(site: Site, ask: Asking) -> None:
    """The minimum exceeds the whole quota, or only the part that other pods leave."""
    site.nodes(1, cpus=8)
    path = f"/api/v1/namespaces/{site.name}/resourcequotas"
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    site.api.post(path, {**body, "spec": {"hard": {"pods": "3"}}})

    def num_counted() -> str:
        used = site.api.get(f"{path}/team").get("status", {}).get("used", {})
        return str(used.get("pods", ""))

    until(lambda: num_counted() == "0", "the quota has a status")
    [fits] = ask(asking("fits", 3, 1), code=0)
    [never] = ask(asking("never", 4, 1), code=9)
    assert (fits["starts"], never["starts"]) == ("now", "never")
    site.pod("other", scheduler="default-scheduler", nodeName=f"{site.name}-0")
    until(lambda: num_counted() == "1", "the quota counts the pod")
    [later] = ask(asking("later", 3, 1), code=8)
    for answer in (never, later):
        assert answer["reason"]["code"] == "ResourceQuotaExceeded"
        assert f"the ResourceQuota {site.name}/team allows 3 pods" in answer["reason"]["message"]
    assert site.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{site.name}/jobs") == []


def test_claims_that_nobody_has_granted_do_not_count(site: Site, ask: Asking) -> None:
    """The pods claim a missing PriorityClass, and GPUs that pods of other schedulers name."""
    site.nodes(2, cpus=64, gpus=8)
    site.controllers()
    site.scheduler()

    def training(name: str, gpus: int) -> Raw:
        body = asking(name, gpus, 1)
        [spec] = body["spec"]["tasks"]
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        spec["template"]["spec"]["containers"][0]["resources"] = limits
        return body

    # The pod holds 4 GPUs, and its annotations name all GPUs of the node.
    site.pod(
        "foreign",
        gpus=4,
        scheduler="default-scheduler",
        annotations={"volcano.sh/gpu-index": ",".join(map(str, range(8)))},
        nodeName=f"{site.name}-0",
    )
    [fits] = ask(training("twelve", 12), code=0)
    assert fits["starts"] == "now"
    [waits] = ask(training("thirteen", 13), code=8)
    assert waits["reason"]["message"].startswith("room for 12 of 13 pods of w")

    golden = training("golden", 13)
    golden["spec"]["priorityClassName"] = f"{site.name}-gold"
    [answer] = ask(golden, code=9)
    assert answer["reason"]["code"] == "RefusedByAPIServer"
    assert f"no PriorityClass with name {site.name}-gold" in answer["reason"]["message"]

    LiveJob(site, golden)
    site.await_event("golden", "no PriorityClass", reason="FailedCreate")
    told = ask.optsched("job", "explain", "-n", site.name, "-N", "golden", code=8)
    assert told["reason"]["code"] == "FailedCreate"
    assert f"no PriorityClass with name {site.name}-gold" in told["reason"]["message"]


def test_a_queue_that_the_api_server_rejects_starts_no_job(site: Site, ask: Asking) -> None:
    site.nodes(1, cpus=4)
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": f"{site.name}-more"},
        "spec": {"weight": 0},
    }
    wanted = asking("wanted", 1, 1)
    wanted["spec"]["queue"] = f"{site.name}-more"
    wanted["metadata"]["namespace"] = site.name
    files = ["-f", ask.file(queue), "-f", ask.file(wanted), "--scheduler-name", site.name]
    [entry] = ask.optsched("what-if", *files, code=9)["asked"]
    assert entry["reason"]["code"] == "RefusedByAPIServer"
    assert f"Queue {site.name}-more" in entry["reason"]["message"]
    assert "spec.weight" in entry["reason"]["message"]
    queue["spec"] = {"weight": 1}
    files[1] = ask.file(queue)
    [entry] = ask.optsched("what-if", *files, code=0)["asked"]
    assert entry["starts"] == "now"
    writes = [path for method, path in ask.methods if method != "GET"]
    assert any("/queues?dryRun=All" in path for path in writes)
    assert all(path.endswith("?dryRun=All") for path in writes)
