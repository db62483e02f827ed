"""JobFlows and CronJobs create jobs on a real cluster."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import until
from tests.support.chronicle import Chronicle
from tests.support.jobs import documents
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.live import Site

pytestmark = pytest.mark.e2e

FLOW = "/apis/flow.volcano.sh/v1alpha1/namespaces/{}/{}"
BATCH = "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/{}"
EXAMPLES = ("manifests", "volcano", "example")
RUN_SECONDS = "optsched.io/run-seconds"


def spec(site: Site, seconds: str = "") -> dict[str, Any]:
    """Return the spec of a job with one pod, which runs for some seconds or until it is ended."""
    marks = {RUN_SECONDS: seconds} if seconds else {}
    requests = {"cpu": "100m"}
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    template = {
        "metadata": {"annotations": marks},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    task = {"name": "t", "replicas": 1, "template": template}
    return {"schedulerName": site.name, "minAvailable": 1, "tasks": [task]}


def template(site: Site, name: str, seconds: str = "") -> None:
    body = {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": "JobTemplate",
        "metadata": {"name": name},
        "spec": spec(site, seconds),
    }
    site.api.post(FLOW.format(site.name, "jobtemplates"), body)


def flow(site: Site, **more: Any) -> None:
    body = {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": "JobFlow",
        "metadata": {"name": "test"},
        "spec": more,
    }
    site.api.post(FLOW.format(site.name, "jobflows"), body)


def phase(site: Site) -> str:
    found = site.api.get(FLOW.format(site.name, "jobflows/test")).get("status", {})
    return str(found.get("state", {}).get("phase", ""))


def jobs(site: Site) -> dict[str, dict[str, Any]]:
    return {job["metadata"]["name"]: job for job in site.api.items(BATCH.format(site.name, "jobs"))}


@pytest.fixture
def works(site: Site) -> Iterator[Site]:
    """Yield a site with a node, a scheduler and controllers."""
    site.nodes(1)
    scheduler, controllers = site.scheduler("--loners", "wait"), site.controllers()
    yield site
    controllers.stop()
    scheduler.stop()


def test_the_flow_of_the_guide_runs_in_its_order_and_clears_up(works: Site) -> None:
    folder = shared(*EXAMPLES, "jobflow")
    for body in documents(folder / "JobTemplate.yaml"):
        pod = body["spec"]["tasks"][0]["template"]
        pod["metadata"]["annotations"] = {RUN_SECONDS: "0.3"}
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        body["spec"]["schedulerName"] = works.name
        works.api.post(FLOW.format(works.name, "jobtemplates"), body)
    [body] = documents(folder / "JobFlow.yaml")
    body["metadata"].pop("namespace", None)
    path = BATCH.format(works.name, "jobs")
    with Chronicle(works.api, [path]) as chronicle:
        works.api.post(FLOW.format(works.name, "jobflows"), body)
        until(lambda: phase(works) == "Succeed", "the flow has succeeded")
    done, begun = set[str](), dict[str, set[str]]()
    for event in chronicle.events(path):
        name = event["object"]["metadata"]["name"]
        begun.setdefault(name, set(done))
        if event["object"].get("status", {}).get("state", {}).get("phase") == "Completed":
            done.add(name)
    waits = {flow["name"]: flow.get("dependsOn", {}) for flow in body["spec"]["flows"]}
    assert begun.keys() == {f"test-{name}" for name in waits}
    for name, depends in waits.items():
        assert {f"test-{target}" for target in depends.get("targets", ())} <= begun[f"test-{name}"]
    until(lambda: not jobs(works), "its jobs are cleared away")
    status = works.api.get(FLOW.format(works.name, "jobflows/test"))["status"]
    assert status["completedJobs"] == sorted(f"test-{name}" for name in waits)
    histories = status["jobStatusList"][0]["runningHistories"]
    assert [each["state"] for each in histories][-1] == "Completed"


def test_a_flow_that_is_named_twice_makes_one_job(works: Site) -> None:
    """As in Volcano, entries of the same name share a job."""
    template(works, "first", "0.2")
    template(works, "second", "0.2")
    second = {"name": "second", "dependsOn": {"targets": ["first"]}}
    path = BATCH.format(works.name, "jobs")
    with Chronicle(works.api, [path]) as chronicle:
        flow(works, flows=[{"name": "first"}, {"name": "first"}, second])
        until(lambda: phase(works) == "Succeed", "the flow has succeeded")
    made = [e["object"]["metadata"] for e in chronicle.events(path) if e["type"] == "ADDED"]
    assert sorted({meta["name"] for meta in made}) == ["test-first", "test-second"]
    assert len({meta["uid"] for meta in made}) == len({meta["name"] for meta in made})


def test_a_flow_with_a_job_that_fails_has_failed(works: Site) -> None:
    template(works, "a")
    template(works, "b")
    flow(works, flows=[{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}])
    until(lambda: "test-a" in jobs(works), "the first job")
    [group] = until(works.groups, "its group")
    works.await_phase(group["metadata"]["name"], "Running")
    works.end_pod("test-a-t-0", "optsched.io/fail")
    until(lambda: phase(works) == "Failed", "the flow has failed")
    assert set(jobs(works)) == {"test-a"}


class Ready(BaseHTTPRequestHandler):
    """An HTTP handler that answers 503 until the test declares it ready."""

    is_ready = False

    def do_GET(self) -> None:
        self.send_response(200 if Ready.is_ready and self.path == "/ready" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_answers_lets_its_clients_begin(works: Site) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        template(works, "server")
        template(works, "client", "0.2")
        port = server.server_address[1]
        probe = {"httpGetList": [{"taskName": "t", "path": "/ready", "port": port}]}
        patch = {"jobSpec": {"tasks": [{"name": "t", "replicas": 2}]}}
        waits = {"targets": ["server"], "probe": probe}
        flow(
            works,
            flows=[{"name": "server"}, {"name": "client", "dependsOn": waits, "patch": patch}],
        )
        pods = f"/api/v1/namespaces/{works.name}/pods/test-server-t-0"
        until(
            lambda: (works.api.find(pods) or {}).get("status", {}).get("phase") == "Running",
            "the server runs",
        )
        # Pods of KWOK have addresses at which no process listens.
        here = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        works.api.patch(f"{pods}/status", {"status": here})
        assert set(jobs(works)) == {"test-server"}
        Ready.is_ready = True
        until(lambda: "test-client" in jobs(works), "the client begins")
        assert jobs(works)["test-client"]["spec"]["tasks"][0]["replicas"] == 2
        until(
            lambda: jobs(works)["test-server"]["status"]["state"]["phase"] == "Running",
            "the server goes on",
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def cron(site: Site, **more: Any) -> None:
    body = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "CronJob",
        "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": spec(site, "0.2")}, **more},
    }
    site.api.post(BATCH.format(site.name, "cronjobs"), body)


def test_a_timetable_makes_jobs_and_clears_old_ones_away(works: Site) -> None:
    cron(works)
    path = BATCH.format(works.name, "cronjobs/tick")
    # The CronJob seems to be old, so that the controller makes up for the last minute.
    works.api.patch(f"{path}/status", {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}})
    # The next minute may begin in the meantime.
    [name, *_] = until(lambda: sorted(jobs(works)), "the last minute has its job")
    until(
        lambda: jobs(works)[name].get("status", {}).get("state", {}).get("phase") == "Completed",
        "it runs and ends",
    )
    until(lambda: works.api.get(path)["status"].get("lastSuccessfulTime"), "it is told")
    assert works.api.get(path)["status"]["lastScheduleTime"] > "2026-01-01"
    works.api.patch(path, {"spec": {"successfulJobsHistoryLimit": 0, "suspend": True}})
    until(lambda: not jobs(works), "it is cleared away")
    for reason in ("SuccessfulCreate", "TooManyMissedTimes", "SuccessfulDelete"):
        until(lambda reason=reason: works.events("tick", reason), reason)
