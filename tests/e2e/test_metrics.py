"""Metrics over TLS are available only to readers whom the API server authorizes."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from optsched.kube.serving.certificates import renew_credentials
from optsched.local.assets import shipped
from tests.support.api import until
from tests.support.live import BEGIN_S, Process
from tests.support.webhooks import SYSTEM, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
READERS = ("prometheus", "stranger")
# Each process does little, because other tests use this control plane.
COMMANDS = {
    "scheduler": ("--scheduler-name", "metrics", "--leader-elect=false", "--solver", "none"),
    "controllers": ("--controllers", "hypernode", "--leader-elect=false"),
    "webhook": ("--bind-address", HOST, "--enabled-admission", "/queues/validate"),
}
SHOWN = {
    "scheduler": "optsched_sessions_total",
    "controllers": "optsched_controller_looks_total",
    "webhook": "optsched_admission_reviews_total",
}


class Served(Process):
    """A process that serves metrics over TLS."""

    def __init__(self, command: str, kubeconfig: Path, folder: Path, trust: str) -> None:
        self._trust = ssl.create_default_context(cadata=trust)
        self._metrics_port = free_port()
        certificate, key = folder / "tls.crt", folder / "tls.key"
        files = (str(certificate), str(key))
        flags = [
            *("--metrics-tls-cert-file", files[0], "--metrics-tls-private-key-file", files[1]),
            *("--metrics-address", f"{HOST}:{self._metrics_port}", "--metrics-auth=true"),
            *COMMANDS[command],
        ]
        if command == "webhook":
            flags += ["--tls-cert-file", files[0], "--tls-private-key-file", files[1]]
            flags += ["--port", str(free_port()), "--graceful-shutdown-time", "1ms"]
        super().__init__(command, kubeconfig, folder / f"{command}.log", flags)

    def metrics(self, token: str = "") -> tuple[int, str]:
        """Return the status code and body that a reader with the token receives."""
        connection = http.client.HTTPSConnection(
            HOST, self._metrics_port, context=self._trust, timeout=60
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request("GET", "/metrics", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def tokens(control_plane: ControlPlane) -> Iterator[dict[str, str]]:
    """Yield tokens of the processes, with the rights of their manifests, and of two readers."""
    kubectl = control_plane.kubectl
    manifests = [
        str(shipped("manifests", f"{name}-{kind}.yaml"))
        for name in COMMANDS
        for kind in ("rbac", "metrics-rbac")
    ]
    for manifest in manifests:
        kubectl("apply", "-f", manifest)
    for reader in READERS:
        kubectl("create", "serviceaccount", reader, "-n", SYSTEM)
    reads = ("--verb=get", "--non-resource-url=/metrics")
    kubectl("create", "clusterrole", "metrics-reader", *reads)
    account = f"--serviceaccount={SYSTEM}:prometheus"
    kubectl(
        "create", "clusterrolebinding", "metrics-reader", "--clusterrole=metrics-reader", account
    )
    accounts = (*(f"optsched-{name}" for name in COMMANDS), *READERS)
    yield {
        name: kubectl("create", "token", name, "-n", SYSTEM, "--duration=1h").strip()
        for name in accounts
    }
    kubectl("delete", "clusterrole,clusterrolebinding", "metrics-reader")
    kubectl("delete", "serviceaccount", *READERS, "-n", SYSTEM)
    for name in COMMANDS:
        for kind in ("clusterrole", "clusterrolebinding"):
            kubectl("delete", kind, f"optsched-{name}", f"optsched-{name}-metrics")


def test_metrics_are_for_readers_with_the_right_and_health_is_open(
    control_plane: ControlPlane, tokens: dict[str, str], tmp_path: Path
) -> None:
    credentials, _ = renew_credentials(None, (HOST,), datetime.now(UTC))
    (tmp_path / "tls.crt").write_bytes(credentials.certificate)
    (tmp_path / "tls.key").write_bytes(credentials.key)
    running = []
    for name in COMMANDS:
        config = json.loads(control_plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": tokens[f"optsched-{name}"]}
        kubeconfig = tmp_path / name
        kubeconfig.write_text(json.dumps(config))
        running.append(Served(name, kubeconfig, tmp_path, credentials.authority.decode()))
    try:
        for name, process in zip(COMMANDS, running, strict=True):
            until(lambda process=process: process.port, f"{name} listens", BEGIN_S)  # type: ignore[misc]
            assert process.ask("/healthz") == (200, "ok")
            assert process.ask("/metrics")[0] == 404
            status, text = process.metrics(tokens["prometheus"])
            assert (status, SHOWN[name] in text) == (200, True), text
            user = f"system:serviceaccount:{SYSTEM}:stranger"
            denied = f"user {user} may not get the nonResourceURL /metrics"
            assert process.metrics(tokens["stranger"]) == (403, denied)
            assert process.metrics()[0] == 401
            assert process.metrics("forged")[0] == 401
            assert "cannot be reviewed" not in process.log
    finally:
        for process in running:
            process.process.terminate()
        for process in running:
            process.process.wait()
            print(process.log)
