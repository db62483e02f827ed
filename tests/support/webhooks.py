"""Run `optsched webhook` as a process, with the configurations that point API servers to it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from base64 import b64encode
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.admission.services import DEFAULT_PATHS, SERVICE_OF, configuration
from optsched.api import kinds
from optsched.api.kinds import POD, collection_path, object_path
from optsched.formats.snapshots.object_stores import NAMESPACE_LABEL
from optsched.kube.serving.certificates import (
    load_credentials,
    renew_credentials,
    server_context,
)
from optsched.local.processes import choose_ports
from tests.support.api import Refused, until
from tests.support.live import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.api.kinds import Kind
    from tests.support.api import Api, Raw

SYSTEM = "volcano-system"
HELD_S = 10
CONFIGURATIONS = [configuration(SERVICE_OF[path]) for path in DEFAULT_PATHS]


def free_port() -> int:
    """Return an unused port outside of the ephemeral port range."""
    return choose_ports(["webhook"], {})["webhook"]


class Webhook(Process):
    """A process that runs `optsched webhook` on a fixed port."""

    def __init__(self, kubeconfig: Path, log: Path, port: int, *flags: str) -> None:
        self.tls_port = port
        own = [
            *("--port", str(port), "--bind-address", "127.0.0.1"),
            *("--webhook-url", f"https://127.0.0.1:{port}", "--graceful-shutdown-time", "1ms"),
        ]
        super().__init__("webhook", kubeconfig, log, [*own, *flags])

    def num_broken(self) -> float:
        return self.metric("optsched_admission_reviews_total", result="error")

    def peak_bytes(self) -> int:
        """Return the peak resident memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def post(self, path: str, body: bytes) -> tuple[int, str]:
        """Return the status code and the text of a response, without a check of the certificate."""
        blind = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", self.tls_port, context=blind)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def make_namespace(api: Api, name: str) -> None:
    """Create a namespace unless it exists."""
    if api.find(f"/api/v1/namespaces/{name}") is None:
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})


@contextmanager
def registered(api: Api) -> Iterator[None]:
    """Register the webhook configurations of the manifest while the context is open."""
    paths = []
    for each in CONFIGURATIONS:
        kind = kinds.find_kind(each["apiVersion"], each["kind"])
        assert kind is not None
        api.post(collection_path(kind), each)
        paths.append(object_path(kind, None, each["metadata"]["name"]))
    try:
        yield
    finally:
        for path in paths:
            api.delete(path)


@contextmanager
def silent_webhook(
    api: Api, space: str, group: str, version: str, resource: str, operation: str
) -> Iterator[None]:
    """Send reviews of a namespace to a server that accepts connections and never answers.

    The API server waits `HELD_S` for each review and then refuses the request.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        rule = {
            "apiGroups": [group],
            "apiVersions": [version],
            "resources": [resource],
            "operations": [operation],
        }
        client = {"url": f"https://127.0.0.1:{server.getsockname()[1]}/"}
        with _reviewing(api, space, "silent.optsched.io", client, rule):
            yield


@contextmanager
def denying_webhook(
    api: Api,
    space: str,
    name: str,
    message: str,
    kind: Kind = POD,
    probe: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Deny new pods of a namespace, or updates of another kind, once the webhook is in force.

    `probe` sends a request that the webhook denies; without it, a dry run creates a pod.
    """

    class Denial(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            review = json.loads(body)
            denied = {"allowed": False, "status": {"message": message}}
            review["response"] = {"uid": review["request"]["uid"], **denied}
            answer = json.dumps(review).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    credentials, _ = renew_credentials(None, ("127.0.0.1",), datetime.now(UTC))
    context = server_context()
    load_credentials(context, credentials)
    rule = {
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "resources": [kind.plural],
        "operations": ["CREATE" if kind == POD else "UPDATE"],
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), Denial) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        bundle = b64encode(credentials.authority).decode()
        client = {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": bundle}
        try:
            with _reviewing(api, space, name, client, rule):
                sent = probe or (lambda: _create_dry_run(api, space))
                until(lambda: message in _refusal(sent), "the webhook is in force")
                yield
        finally:
            server.shutdown()
            thread.join()


def _create_dry_run(api: Api, space: str) -> None:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    pod = {"metadata": {"generateName": "probe-"}, "spec": spec}
    api.post(f"/api/v1/namespaces/{space}/pods?dryRun=All", pod)


def _refusal(probe: Callable[[], object]) -> str:
    """Return the reason for which a request is refused, or an empty text."""
    try:
        probe()
    except Refused as e:
        return str(e)
    return ""


@contextmanager
def _reviewing(api: Api, space: str, name: str, client: Raw, rule: Raw) -> Iterator[None]:
    """Register a validating webhook for a namespace while the context is open."""
    hook = {
        "name": name,
        "clientConfig": client,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: space}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": HELD_S,
        "failurePolicy": "Fail",
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": space},
        "webhooks": [hook],
    }
    path = f"/apis/{body['apiVersion']}/validatingwebhookconfigurations"
    api.post(path, body)
    try:
        yield
    finally:
        api.delete(f"{path}/{space}")


@contextmanager
def serving(api: Api, kubeconfig: Path, folder: Path) -> Iterator[Webhook]:
    """Yield a webhook that the API server calls, with the built-in queues."""
    make_namespace(api, SYSTEM)
    with registered(api):
        webhook = Webhook(kubeconfig, folder / "webhook.log", free_port()).begin()
        for name in ("default", "root"):
            until(lambda name=name: queue_is_made(api, name), f"queue {name}")  # type: ignore[misc]
        yield webhook
        webhook.stop()


def queue_is_made(api: Api, name: str, **spec: Any) -> bool:
    """Create a queue unless it exists, and return whether the queue exists.

    Return False while the webhook does not answer. The root queue has the fields that the scheduler
    sets, because later tests on the plane rely on them.
    """
    kind = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue"}
    spec = {"reclaimable": name != "root", **spec}
    try:
        api.post(collection_path(kinds.QUEUE), {**kind, "metadata": {"name": name}, "spec": spec})
    except Refused as e:
        if e.code == HTTPStatus.CONFLICT:
            return True
        if "failed calling webhook" not in str(e):
            raise
        return False
    return True
