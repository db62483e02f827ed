"""A webhook is killed and restarted while clients continue and certificates change.

No invalid object is ever admitted, and valid objects are admitted once a webhook responds.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.admission.kit import job
from tests.support.api import Refused, until
from tests.support.webhooks import (
    CONFIGURATIONS,
    SYSTEM,
    Webhook,
    free_port,
    make_namespace,
    queue_is_made,
    registered,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

pytestmark = pytest.mark.e2e

SPACE = "restarts"
JOBS = collection_path(kinds.JOB, SPACE)
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/volcano-admission-secret"
AUTHORITY = f"{SECRET}-authority"
NUM_CLIENTS = 3
PAUSE_S = 0.05
NUM_BETWEEN = 15
ROTATION_S = 90.0
TRUST_S = 10.0
"""How long API servers distrust the webhook at most, as docs/admission.md says."""


@dataclass
class Load:
    """Clients that submit valid and invalid jobs, and try invalid changes of stored jobs."""

    api: Api
    done: threading.Event = field(default_factory=threading.Event)
    made: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    distrusts: list[tuple[float, bool]] = field(default_factory=list)
    """By time: whether an API server distrusted the certificate, or made a job."""

    def client(self, worker: int) -> None:
        """Submit jobs until the load is done."""
        try:
            for number in count():
                if self.done.wait(PAUSE_S):
                    return
                self._work(f"w{worker}-{number}")
        finally:
            self.api.close()

    def _work(self, name: str) -> None:
        """Submit a valid job until it is stored, and try invalid requests."""
        bad = submitted(f"bad-{name}", 9)
        self._refuse(name, partial(self.api.post, JOBS, bad))
        if not self._make(name):
            return
        path = object_path(kinds.JOB, SPACE, name)
        self._refuse(name, partial(self.api.patch, path, {"spec": {"queue": "root"}}))
        default = object_path(kinds.QUEUE, None, "default")
        self._refuse(name, partial(self.api._call, "DELETE", default))

    def _make(self, name: str) -> bool:
        while not self.done.is_set():
            try:
                self.api.post(JOBS, submitted(name, 2))
            except Refused as e:
                if e.code != HTTPStatus.CONFLICT:
                    self._note(e)
                    self.done.wait(PAUSE_S)
                    continue
            self.made.append(name)
            self.distrusts.append((time.monotonic(), False))
            return True
        return False

    def _refuse(self, name: str, action: Callable[[], Any]) -> None:
        """Send an invalid request and record its refusal."""
        try:
            action()
        except Refused as e:
            if "denied the request" in str(e):
                self.refused.append(name)
            else:
                self._note(e)
        else:
            self.wrong.append(f"{name}: was let in")

    def _note(self, error: Refused) -> None:
        lost = "failed calling webhook" in str(error)
        if "x509" in str(error):
            self.distrusts.append((time.monotonic(), True))
        (self.lost if lost else self.wrong).append(str(error))

    def longest_distrust_s(self) -> float:
        """Return the longest time from an x509 error to the next stored job."""
        longest, began = 0.0, None
        for at, is_distrust in self.distrusts:
            if is_distrust and began is None:
                began = at
            elif not is_distrust and began is not None:
                longest, began = max(longest, at - began), None
        assert began is None, "the webhook is distrusted for ever"
        return longest

    def go_on(self, what: str) -> None:
        """Wait until the clients have stored further jobs, and had further requests refused."""
        num_made, num_refused = len(self.made), len(self.refused)

        def went_on() -> bool:
            assert self.wrong == []
            return (
                len(self.made) >= num_made + NUM_BETWEEN
                and len(self.refused) >= num_refused + NUM_BETWEEN
            )

        until(went_on, what)


def submitted(name: str, minimum: int) -> dict[str, Any]:
    found = job(minAvailable=minimum)
    return {**found, "metadata": {"name": name, "namespace": SPACE}}


@contextmanager
def loaded(api: Api) -> Iterator[Load]:
    """Yield a load whose clients run while the context is open."""
    load = Load(api)
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(load.client, worker) for worker in range(NUM_CLIENTS)]
        try:
            yield load
        finally:
            load.done.set()
        for each in clients:
            each.result()


def test_nothing_bad_gets_in_while_a_webhook_comes_and_goes(
    control_plane: ControlPlane, api: Api, tmp_path: Path
):
    port, number = free_port(), count()
    make_namespace(api, SYSTEM)
    make_namespace(api, SPACE)

    def start() -> Webhook:
        log = tmp_path / f"{next(number)}.log"
        return Webhook(control_plane.kubeconfig, log, port).begin()

    with registered(api):
        running = start()
        for name in ("default", "root"):
            until(lambda name=name: queue_is_made(api, name), f"queue {name}")  # type: ignore[misc]
        with loaded(api) as load:
            load.go_on("jobs are made")
            shown = ssl.get_server_certificate(("127.0.0.1", port))
            for _ in range(3):
                running = killed(running, start, load)
            # All webhooks served the same certificate, because it is in the Secret.
            assert ssl.get_server_certificate(("127.0.0.1", port)) == shown
            certificates_change(api, running, load, port)
            for secret in (SECRET, AUTHORITY):
                api.delete(secret)
            running = killed(running, start, load)
            load.go_on("it signs again")
        running.stop()
    assert load.wrong == []
    stored = {each["metadata"]["name"]: each["spec"] for each in api.items(JOBS)}
    assert stored.keys() == set(load.made)
    assert all(spec["minAvailable"] == 2 for spec in stored.values())
    assert {spec["queue"] for spec in stored.values()} == {"default"}
    assert api.find(object_path(kinds.QUEUE, None, "default")) is not None
    api.delete(JOBS)


def test_api_servers_distrust_a_webhook_for_seconds_at_most(
    control_plane: ControlPlane, api: Api, tmp_path: Path
):
    """The webhook issues a new authority, or its configurations lose their authority."""
    port, number = free_port(), count()
    make_namespace(api, SYSTEM)
    make_namespace(api, SPACE)

    def start() -> Webhook:
        log = tmp_path / f"{next(number)}.log"
        return Webhook(control_plane.kubeconfig, log, port).begin()

    with registered(api):
        running = start()
        until(lambda: queue_is_made(api, "default"), "queue default")
        with loaded(api) as load:
            load.go_on("jobs are made")
            running = killed(running, start, load)
            assert not any(is_distrust for _, is_distrust in load.distrusts)
            certificates_change(api, running, load, port)
            for secret in (SECRET, AUTHORITY):
                api.delete(secret)
            running = killed(running, start, load)
            num_before = sum(is_distrust for _, is_distrust in load.distrusts)
            reapply(api)
            until(
                lambda: sum(is_distrust for _, is_distrust in load.distrusts) > num_before,
                "the authority is gone",
            )
            load.go_on("it is trusted again")
        running.stop()
    assert load.wrong == []
    assert load.longest_distrust_s() <= TRUST_S
    api.delete(JOBS)


def reapply(api: Api) -> None:
    """Apply the configurations again without the authority, as GitOps tools do."""
    for each in CONFIGURATIONS:
        kind = kinds.find_kind(each["apiVersion"], each["kind"])
        assert kind is not None
        path = object_path(kind, None, each["metadata"]["name"])
        hooks = api.get(path)["webhooks"]
        for hook in hooks:
            hook["clientConfig"].pop("caBundle", None)
        api.patch(path, {"webhooks": hooks})


def killed(running: Webhook, start: Callable[[], Webhook], load: Load) -> Webhook:
    """Kill a webhook, check that no job is stored, and start another webhook."""
    running.kill()
    num_lost, num_made = len(load.lost), len(load.made)
    until(lambda: len(load.lost) >= num_lost + 2 * NUM_CLIENTS, "nobody answers")
    # Jobs whose review response was in transit may still have been stored.
    assert len(load.made) <= num_made + NUM_CLIENTS
    other = start()
    load.go_on("it answers again")
    return other


def certificates_change(api: Api, running: Webhook, load: Load, port: int) -> None:
    """Replace the certificate, and then the authority, while the webhook runs."""
    for secret, name in ((SECRET, "tls.crt"), (AUTHORITY, "ca.crt")):
        shown = ssl.get_server_certificate(("127.0.0.1", port))
        api.patch(secret, {"data": {name: ""}})

        def is_new(shown: str = shown) -> bool:
            assert load.wrong == []
            return ssl.get_server_certificate(("127.0.0.1", port)) != shown

        until(is_new, "another certificate is shown", ROTATION_S)
        load.go_on("it is trusted")
    assert len(re.findall(r"uses a certificate that expires (\S+)", running.log)) == 3


def test_while_nobody_answers_nothing_is_let_in_and_what_runs_goes_on(
    control_plane: ControlPlane, api: Api, tmp_path: Path
):
    make_namespace(api, SPACE)
    default = object_path(kinds.QUEUE, None, "default")
    path, pods = object_path(kinds.JOB, SPACE, "runs"), f"/api/v1/namespaces/{SPACE}/pods"
    with serving(api, control_plane.kubeconfig, tmp_path):
        api.post(JOBS, submitted("runs", 2))
    with registered(api):
        trials = [
            partial(api.post, f"{JOBS}?dryRun=All", submitted("later", 2)),
            partial(api.patch, f"{path}?dryRun=All", {"spec": {"minAvailable": 1}}),
            partial(api._call, "DELETE", f"{default}?dryRun=All"),
        ]
        for trial in trials:
            # API servers receive changed configurations within moments.
            until(partial(is_refused, trial), "nobody is asked, and nothing let in")
        # Controllers and schedulers continue: status, pods and deletions of jobs need no webhook.
        status = {"status": {"state": {"phase": "Running"}, "running": 2}}
        assert api.patch(f"{path}/status", status)["status"]["running"] == 2
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        api.post(pods, pod)
        api.delete(f"{pods}/p")
        api._call("DELETE", path)
    until(lambda: api.find(path) is None, "it is gone")


def is_refused(trial: Callable[[], object]) -> bool:
    """Return whether an action fails because no webhook responds."""
    try:
        trial()
    except Refused as e:
        return "failed calling webhook" in str(e)
    return False
