"""Run a scheduler as a process, on a separate part of a cluster."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from optsched.api.wellknown import GROUP_SCHEDULER
from optsched.local.kubectl import node_manifest
from tests.support.api import PATIENCE_S, Refused, until
from tests.support.jobs import documents, group_name, group_of, pods_of
from tests.support.proxy import Proxy
from tests.support.service_process import Service, execute_service
from tests.support.story import GPU, GROUP_NAME, Story

P = TypeVar("P", bound=AbstractContextManager[Any])
S = TypeVar("S", bound="Process")

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.support.api import Api, Raw
    from tests.support.story import Moment

PERIOD = "100ms"
SCHEDULING = "scheduling.volcano.sh/v1beta1"
BATCH = "batch.volcano.sh/v1alpha1"
QUEUES = f"/apis/{SCHEDULING}/queues"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
SESSIONS = "optsched_sessions_total"
ASKED = "asked-again"
SITE_LABEL = "site"
COMPLETE = "optsched.io/complete"
FAIL = "optsched.io/fail"
SEEN = "optsched.io/seen-by-kubelet"
BEGIN_S = 120.0
END_S = 60.0
ANSWER_S = 30.0

_LISTENS = re.compile(r"health(?: and metrics)? on \S+:(\d+)")


class Process:
    """A subcommand of `optsched` that serves a cluster.

    Attributes
    ----------
    start
        The function that starts the process with its arguments and its log.

    """

    start: ClassVar[Callable[[Sequence[str], Path], Service]] = staticmethod(execute_service)

    def __init__(self, command: str, kubeconfig: Path, log: Path, flags: Sequence[str]) -> None:
        self._log = log
        options = ["--kubeconfig", str(kubeconfig), "--listen-address", "127.0.0.1:0"]
        self.process = Process.start([command, *options, *flags], log)

    @property
    def log(self) -> str:
        """The output of the process so far."""
        return self._log.read_text()

    def begin(self) -> Self:
        """Wait until the process is ready."""
        until(lambda: self.port and self.ask("/readyz")[0] == 200, "ready", BEGIN_S)
        return self

    @property
    def port(self) -> int:
        """The port of the health server, or 0 before the process listens."""
        assert self.process.poll() is None, f"it has ended:\n{self.log}"
        found = _LISTENS.search(self.log)
        return int(found[1]) if found else 0

    def ask(self, path: str) -> tuple[int, str]:
        """Send GET to a path of the health server, and return the status code and the text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with some labels."""
        # Some tests ask 20 times a second, and all metrics take much longer than one.
        families = text_string_to_metric_families(self.ask(f"/metrics?name[]={name}")[1])
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def await_log(self, text: str) -> None:
        """Wait until the log contains a text."""
        until(lambda: text in self.log, f"it says: {text}", BEGIN_S)

    def await_metric(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric has a value."""
        what = f"{name} {labels} is {value}"
        until(lambda: self.metric(name, **labels) == value, what)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Terminate the process, and check that its log and metrics have no errors."""
        if self.process.poll() is not None:
            return
        until(lambda: self.port, "it listens", BEGIN_S)  # a new process may not listen yet
        broken = self.num_broken()
        self.process.terminate()
        assert self.process.wait(END_S) == 0, self.log
        assert broken == 0, self.log
        assert "Traceback" not in self.log

    def num_broken(self) -> float:
        """Return the number of errors in the metrics of the process that must not occur."""
        return 0


class Scheduler(Process):
    """A process that runs `optsched scheduler`, which must have no errors at `stop`."""

    def __init__(self, kubeconfig: Path, log: Path, flags: Sequence[str]) -> None:
        super().__init__("scheduler", kubeconfig, log, flags)

    def begun(self) -> Self:
        """Wait until the solver is ready too."""
        self.await_log("solver ready")
        return self

    def num_broken(self) -> float:
        return sum(
            self.metric(f"optsched_{name}_total") for name in ("violations", "session_errors")
        )


class Controllers(Process):
    """A process that runs `optsched controllers`, which must have no errors at `stop`."""

    def __init__(self, kubeconfig: Path, log: Path, flags: Sequence[str]) -> None:
        super().__init__("controllers", kubeconfig, log, flags)

    def num_broken(self) -> float:
        return self.metric("optsched_controller_looks_total", result="error")

    def num_writes(self, resource: str = "", **labels: str) -> float:
        """Return the number of accepted writes to one resource, or to all resources."""
        wanted = {"resource": resource, **labels} if resource else labels
        return self.metric("optsched_controller_writes_total", **wanted)


class Site:
    """Nodes, a namespace and schedulers that are separate from other sites on the same plane.

    The namespace, the scheduler and the node label have the same name.
    """

    def __init__(self, name: str, api: Api, kubeconfig: Path, folder: Path) -> None:
        self.name = name
        self.api = api
        self.kubeconfig = kubeconfig
        self.cpus: dict[str, int] = {}
        self.story = Story(api, name)
        self._folder = folder
        self._schedulers: list[Process] = []
        self._proxies: list[AbstractContextManager[Any]] = []
        self._others: list[str] = []

    # --- the cluster -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.api.post("/api/v1/namespaces", _named("v1", "Namespace", self.name))
        self.story.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop running processes, print their logs, and delete the objects of the site."""
        try:
            for scheduler in self._schedulers:
                scheduler.stop()
        finally:
            for scheduler in self._schedulers:
                if scheduler.process.poll() is None:
                    scheduler.kill()
                print(f"--- {scheduler.process.args}\n{scheduler.log}")
            for proxy in self._proxies:
                proxy.__exit__()
            self.story.__exit__()
            jobs = f"/apis/{BATCH}/namespaces/{self.name}/jobs"
            for path in (jobs, self._in("pods"), self._groups(), *self._others):
                self.api.delete(path)
            self.api.delete("/api/v1/nodes", labelSelector=f"{SITE_LABEL}={self.name}")
            self.api.delete(f"/api/v1/namespaces/{self.name}")

    def nodes(
        self, number: int, cpus: int = 4, gpus: int = 0, memory: str = "16Gi"
    ) -> tuple[str, ...]:
        """Add nodes, wait until they are ready, and return their names."""
        names = tuple(f"{self.name}-{len(self.cpus) + i}" for i in range(number))
        labels = {SITE_LABEL: self.name}
        for name in names:
            manifest = node_manifest(name, cpu=str(cpus), memory=memory, gpu=gpus, labels=labels)
            self.create("/api/v1/nodes", manifest)
        self.cpus |= dict.fromkeys(names, cpus)
        for name in names:
            until(lambda name=name: self._is_ready(name), f"node {name} is ready")
        return names

    def register(self, name: str, cpus: int) -> None:
        """Create a deleted node of this site again, unless it exists, and let its pods run.

        A kubelet lists the pods of its node when it starts. KWOK never runs a pod whose last
        change came while its node did not exist, so each pod is changed once more.
        """
        if self.api.find(f"/api/v1/nodes/{name}") is None:
            labels = {SITE_LABEL: self.name}
            self.api.post("/api/v1/nodes", node_manifest(name, cpu=str(cpus), labels=labels))
        until(lambda: self._is_ready(name), f"node {name} is ready")
        for pod in self.api.items(self._in("pods"), fieldSelector=f"spec.nodeName={name}"):
            try:
                self.change_pod(pod["metadata"]["name"], {"metadata": {"annotations": {SEEN: ""}}})
            except Refused as e:
                if e.code != http.HTTPStatus.NOT_FOUND:
                    raise

    def _is_ready(self, name: str) -> bool:
        conditions = self.api.get(f"/api/v1/nodes/{name}").get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def create(self, path: str, body: Raw) -> Raw:
        """Create an object outside of the namespace, which is deleted at the end."""
        made = self.api.post(path, body)
        self._others.append(f"{path}/{made['metadata']['name']}")
        return made

    def queue(self, name: str, **spec: Any) -> str:
        """Create a queue of this site, and return its full name."""
        full = f"{self.name}-{name}"
        self.create(QUEUES, {**_named(SCHEDULING, "Queue", full), "spec": {"weight": 1, **spec}})
        return full

    def priority(self, name: str, value: int, **more: Any) -> str:
        """Create a PriorityClass of this site, and return its full name."""
        full = f"{self.name}-{name}"
        kind = _named("scheduling.k8s.io/v1", "PriorityClass", full)
        self.create(PRIORITIES, {**kind, "value": value, **more})
        return full

    def config_map(self, name: str, **data: str) -> None:
        """Create a ConfigMap."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        self.api.post(f"/api/v1/namespaces/{self.name}/configmaps", body)

    def apply(self, path: Path, *names: str) -> None:
        """Create the objects of a manifest file, all of them or some by name.

        A PodGroup is created in the namespace of the site. A job is replaced by its PodGroup and
        pods, for the schedulers of the site.
        """
        for body in documents(path):
            kind, name = body["kind"], body["metadata"]["name"]
            if names and name not in names:
                continue
            if kind == "Job":
                self.job(body)
            elif kind == "PodGroup":
                self.api.post(self._groups(), body)
            else:
                self.create({"Queue": QUEUES, "PriorityClass": PRIORITIES}[kind], body)

    def job(self, job: Raw) -> str:
        """Create the PodGroup and the pods of a job, and return the name of the PodGroup."""
        self.api.post(self._groups(), group_of(job))
        for pod in pods_of(job, self.name):
            self.api.post(self._in("pods"), pod)
        return group_name(job)

    def suit(self, job: Raw) -> None:
        """Set the scheduler and the node selector of a job to the values of the site."""
        job["spec"].setdefault("schedulerName", self.name)
        for task in job["spec"]["tasks"]:
            task["template"]["spec"]["nodeSelector"] = {SITE_LABEL: self.name}

    # --- gangs -----------------------------------------------------------------------------------

    def gang(self, name: str, size: int, min_member: int | None = None, **more: Any) -> str:
        """Create a PodGroup and its pods with the fields `more`, and return its name."""
        least = size if min_member is None else min_member
        importance = more.get("priorityClassName")
        group = {"priorityClassName": importance} if importance else {}
        self.group(name, least, more.pop("queue", "default"), **group)
        self.members(name, range(size), **more)
        return name

    def group(
        self,
        name: str,
        min_member: int,
        queue: str = "default",
        *,
        annotations: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Create a PodGroup without pods."""
        spec = {"minMember": min_member, "queue": queue, **more}
        body = {**_named(SCHEDULING, "PodGroup", name), "spec": spec}
        body["metadata"]["annotations"] = {GROUP_SCHEDULER: self.name, **(annotations or {})}
        self.api.post(self._groups(), body)

    def members(self, gang: str, indices: range, **more: Any) -> None:
        """Create pods of a gang."""
        for i in indices:
            self.pod(f"{gang}-{i}", annotations={GROUP_NAME: gang}, **more)

    def pod(
        self,
        name: str,
        *,
        cpus: int = 1,
        gpus: int = 0,
        memory: str = "",
        scheduler: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        finalizer: str = "",
        **spec: Any,
    ) -> str:
        """Create a pod, without a gang unless its annotations name one, and return its name."""
        resources = _resources(cpus, gpus, memory)
        container = {"name": "main", "image": "none", "resources": resources}
        body = {
            **_named("v1", "Pod", name),
            "spec": {
                "schedulerName": scheduler or self.name,
                "restartPolicy": "Never",
                "containers": [container],
                **spec,
            },
        }
        body["metadata"]["annotations"] = dict(annotations or {})
        body["metadata"]["labels"] = dict(labels or {})
        body["metadata"]["finalizers"] = [finalizer] if finalizer else []
        self.api.post(self._in("pods"), body)
        return name

    def complete(self, *gangs: str) -> None:
        """Let the pods of gangs succeed, and wait for their end."""
        for pod in [pod for gang in gangs for pod in self.story.pods(gang)]:
            self.end_pod(pod.name)
        for gang in gangs:
            self.story.until(
                lambda story, gang=gang: all(p.phase == "Succeeded" for p in story.pods(gang)),
                f"{gang} has ended",
            )

    def end_pod(self, name: str, how: str = COMPLETE) -> None:
        """End a pod by an annotation with the key `how`."""
        self.change_pod(name, {"metadata": {"annotations": {how: ""}}})

    def change_pod(self, name: str, patch: Raw) -> None:
        """Change a pod by a merge patch."""
        self.api.patch(self._in("pods", name), patch)

    def change_group(self, name: str, **spec: Any) -> None:
        """Change fields in the spec of a PodGroup."""
        self.api.patch(self._groups(name), {"spec": spec})

    def delete_pod(self, name: str) -> None:
        """Delete a pod immediately, and wait for the end of the deletion."""
        self.api.delete(self._in("pods", name))
        self.story.until(lambda s: name not in {pod.name for pod in s.pods()}, f"{name} is gone")

    def remove(self, *gangs: str) -> None:
        """Delete PodGroups and their pods, and wait for the end of the deletion."""
        for gang in gangs:
            self.api.delete(self._groups(gang))
            for pod in self.story.pods(gang):
                self.delete_pod(pod.name)

    def await_bound(self, gang: str, number: int, seconds: float = PATIENCE_S) -> None:
        """Wait until `number` pods of a gang are bound."""
        what = f"{number} of {gang} are bound"
        self.story.until(lambda story: story.num_bound(gang) == number, what, seconds)

    def nominated(self, name: str) -> str:
        """Return the nominated node of a pod, or an empty text."""
        status = self.api.get(self._in("pods", name)).get("status", {})
        return str(status.get("nominatedNodeName") or "")

    def budget(self, name: str, labels: Mapping[str, str], min_available: int) -> None:
        """Create a disruption budget for pods with labels."""
        spec = {"minAvailable": min_available, "selector": {"matchLabels": dict(labels)}}
        body = {**_named("policy/v1", "PodDisruptionBudget", name), "spec": spec}
        path = f"/apis/policy/v1/namespaces/{self.name}/poddisruptionbudgets"
        self.create(path, body)

    def file(self, name: str, text: str) -> Path:
        """Write a file in the folder of this site, and return its path."""
        path = self._folder / name
        path.write_text(text)
        return path

    def assert_still(self, scheduler: Scheduler, num_sessions: int = 10) -> None:
        """Check that no pod changes in `num_sessions` further sessions.

        A meaningless node label triggers each session. All bound pods must run first, because their
        start would be a change.
        """
        story = self.story
        story.until(lambda s: not _starting(s.pods()), "what is bound runs")
        moments = len(story.moments())
        # The test's watch may report a bind before the scheduler receives and counts it.
        for value in ("first", "second"):
            self._ask_again(scheduler, value)
        before = _deeds(scheduler)
        for i in range(num_sessions):
            self._ask_again(scheduler, str(i))
        story.assert_none_moves_since(moments)
        assert _deeds(scheduler) == before
        story.assert_bound_once()
        story.assert_within(self.cpus)

    def _ask_again(self, scheduler: Scheduler, value: str) -> None:
        """Trigger one more session, and wait for its end."""
        held = scheduler.metric(SESSIONS)
        node = next(iter(self.cpus))
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {ASKED: value}}})
        until(lambda: scheduler.metric(SESSIONS) > held, "another session")

    # --- statuses and events ---------------------------------------------------------------------

    def groups(self) -> list[Raw]:
        """Return the PodGroups of the site."""
        return self.api.items(self._groups())

    def lease(self, name: str) -> Raw:
        """Return the spec of a lease in the namespace."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases/{name}"
        spec: Raw = self.api.get(path)["spec"]
        return spec

    def group_status(self, name: str) -> Raw:
        """Return the status of a PodGroup."""
        status: Raw = self.api.get(self._groups(name)).get("status", {})
        return status

    def condition(self, group: str, kind: str) -> Raw:
        """Return a condition of a PodGroup, or an empty dict without this condition."""
        conditions = self.group_status(group).get("conditions") or ()
        return next((c for c in conditions if c["type"] == kind), {})

    def await_waits(self, group: str, reason: str, *texts: str) -> Raw:
        """Wait until a PodGroup reports a waiting reason with some texts, and return the condition.

        A first session may not know all objects yet, so its reason may be less complete.
        """

        def waits() -> Raw:
            condition = self.condition(group, "Unschedulable")
            is_so = (condition.get("status"), condition.get("reason")) == ("True", reason)
            return condition if is_so and says(condition, *texts) else {}

        try:
            return until(waits, f"{group} waits, {reason} {texts}")
        except AssertionError:
            print(f"--- {group}: {self.group_status(group)}")
            raise

    def await_phase(self, group: str, phase: str) -> Raw:
        """Wait until a PodGroup is in a phase, and return its status."""

        def reached() -> Raw:
            status = self.group_status(group)
            return status if status.get("phase") == phase else {}

        return until(reached, f"{group} is {phase}")

    def await_running(self, group: str, number: int) -> None:
        """Wait until the status of a PodGroup counts `number` running pods."""
        what = f"{number} pods of {group} run"
        until(lambda: self.group_status(group).get("running") == number, what)

    def events(self, name: str, reason: str = "", namespace: str = "") -> list[Raw]:
        """Return the events about an object, with one reason or with any reason."""
        found = self.api.items(f"/api/v1/namespaces/{namespace or self.name}/events")
        return [
            event
            for event in found
            if event["involvedObject"].get("name") == name and reason in ("", event["reason"])
        ]

    def await_event(self, name: str, *texts: str, reason: str = "", namespace: str = "") -> Raw:
        """Wait for an event about an object with some texts in its message, and return the event.

        Events are written in the background, after the actions that they describe.
        """

        def found() -> Raw | None:
            events = self.events(name, reason, namespace)
            return next((event for event in events if says(event, *texts)), None)

        event = until(found, f"an event about {name} says {reason} {texts}")
        assert event is not None
        return event

    def reasons(self, name: str) -> Counter[str]:
        """Return the number of waiting events of an object, by the code at the start of the
        message.
        """
        messages = [event["message"] for event in self.events(name, "Unschedulable")]
        assert not [message for message in messages if "\n" in message], "more than a sentence"
        return Counter(message.partition(":")[0] for message in messages)

    # --- schedulers ------------------------------------------------------------------------------

    def scheduler(self, *flags: str, kubeconfig: Path | None = None) -> Scheduler:
        """Start a scheduler of this site, and wait until it is ready.

        Later flags take precedence.
        """
        return self.spawn(*flags, kubeconfig=kubeconfig).begin()

    def spawn(self, *flags: str, kubeconfig: Path | None = None) -> Scheduler:
        """Start a scheduler of this site without waiting."""
        own = ["--node-selector", f"{SITE_LABEL}:{self.name}", "--schedule-period", PERIOD]
        if "--scheduler-name" not in flags:
            own += ["--scheduler-name", self.name]
        if "--leader-elect" not in flags:
            own.append("--no-leader-elect")
        log = self._folder / f"scheduler-{len(self._schedulers)}.log"
        scheduler = Scheduler(
            kubeconfig or self.kubeconfig, log, [*own, "--dump-dir", str(self._folder), *flags]
        )
        self._schedulers.append(scheduler)
        return scheduler

    def controllers(self, *flags: str, kubeconfig: Path | None = None) -> Controllers:
        """Start controllers for the pods of this site and for all queues, and wait until they are
        ready.
        """
        return self.spawn_controllers(*flags, kubeconfig=kubeconfig).begin()

    def spawn_controllers(self, *flags: str, kubeconfig: Path | None = None) -> Controllers:
        """Start controllers without waiting."""
        own = ["--scheduler-name", self.name]
        if "--leader-elect" not in flags:
            own.append("--no-leader-elect")
        log = self._folder / f"controllers-{len(self._schedulers)}.log"
        controllers = Controllers(kubeconfig or self.kubeconfig, log, [*own, *flags])
        self._schedulers.append(controllers)
        return controllers

    def supervise(self, process: S) -> S:
        """Stop a process at the end of the site, and return the process."""
        self._schedulers.append(process)
        return process

    def keep(self, proxy: P) -> P:
        """Open a proxy that is closed after all processes have ended, and return it."""
        proxy.__enter__()
        self._proxies.append(proxy)
        return proxy

    def proxy(self) -> Proxy:
        """Return a proxy of the API server for schedulers of this site."""
        proxy = Proxy(self.kubeconfig, self._folder).__enter__()
        self._proxies.append(proxy)
        return proxy

    def _in(self, plural: str, name: str = "") -> str:
        path = f"/api/v1/namespaces/{self.name}/{plural}"
        return f"{path}/{name}" if name else path

    def _groups(self, name: str = "") -> str:
        path = f"/apis/{SCHEDULING}/namespaces/{self.name}/podgroups"
        return f"{path}/{name}" if name else path


def says(told: Raw, *texts: str) -> bool:
    """Return whether the message of a condition or an event contains all texts."""
    return all(text in told.get("message", "") for text in texts)


def _named(version: str, kind: str, name: str) -> Raw:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _resources(cpus: int, gpus: int, memory: str) -> Raw:
    """Return the requests of a container, with limits for extended resources."""
    wanted = {"cpu": str(cpus) if cpus else "", "memory": memory, GPU: str(gpus) if gpus else ""}
    requests = {resource: amount for resource, amount in wanted.items() if amount}
    return {"requests": requests, "limits": {GPU: str(gpus)}} if gpus else {"requests": requests}


def _starting(pods: Sequence[Moment]) -> list[str]:
    return [pod.name for pod in pods if pod.is_bound and pod.phase == "Pending"]


def _deeds(scheduler: Scheduler) -> tuple[float, ...]:
    """Return the numbers of binds, failed binds and evictions of a scheduler."""
    return (
        scheduler.metric("volcano_schedule_attempts_total", result="scheduled"),
        scheduler.metric("volcano_schedule_attempts_total", result="error"),
        scheduler.metric("optsched_evictions_total"),
    )
