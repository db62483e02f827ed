"""Measure the latency of admission reviews at 200 jobs per second, relative to an idle webhook.

Run `make bench-admission`. A client sends reviews like an API server, over TLS on persistent
connections. It sends 200 jobs per second, each to /jobs/mutate for defaults and then to
/jobs/validate. The idle webhook is a process with the same HTTP server that admits everything
without parsing it. Both webhooks run the whole time, and the client calls them alternately for five
seconds each. The client checks every response.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from optsched.kube.serving.certificates import renew_credentials
from optsched.local.assets import require, shipped
from optsched.local.components import Options
from optsched.local.plane import ControlPlane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PER_SECOND = 200
TURN_S = 5.0
MOST_P50_MS = 5.0
MOST_TIMES_P99 = 3.0
PATHS = ("/jobs/mutate", "/jobs/validate")


def job(number: int) -> dict[str, Any]:
    """Return a job manifest that omits many fields, so that admission sets their defaults."""
    limits = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "train", "resources": {"limits": limits}}
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [container]}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": f"job-{number}", "namespace": "default"},
        "spec": {
            "minAvailable": 5,
            "queue": "default",
            "plugins": {"pytorch": ["--master=master", "--worker=worker"], "env": []},
            "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
            "tasks": [
                {"name": "master", "replicas": 1, "template": template},
                {"name": "worker", "replicas": 4, "template": template},
            ],
        },
    }


def review(number: int, obj: dict[str, Any]) -> dict[str, Any]:
    """Return the AdmissionReview for the creation of an object."""
    kind = {"group": "batch.volcano.sh", "version": "v1alpha1"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(number),
            "kind": {**kind, "kind": "Job"},
            "resource": {**kind, "resource": "jobs"},
            "name": obj["metadata"]["name"],
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "user", "groups": ["system:authenticated"]},
            "object": obj,
            "oldObject": None,
            "dryRun": False,
        },
    }


# --- the idle webhook ----------------------------------------------------------------------------


async def nothing(port: int, folder: Path) -> None:
    """Serve a webhook over TLS that admits everything."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**kind, "response": {"uid": "", "allowed": True}})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    app = web.Application()
    for path in PATHS:
        app.router.add_post(path, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    await asyncio.Event().wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def processes(plane: ControlPlane, folder: Path) -> Iterator[tuple[str, str]]:
    """Start both webhooks, and yield the URLs of optsched's webhook and of the idle webhook."""
    made, _ = renew_credentials(None, ("127.0.0.1",), datetime.now(UTC))
    certificate, key, authority = (folder / f"tls.{end}" for end in ("crt", "key", "ca"))
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    authority.write_bytes(made.authority)
    ours, other = free_port(), free_port()
    command = [*("webhook", "--kubeconfig", str(plane.kubeconfig), "--port", str(ours))]
    command += ["--bind-address", "127.0.0.1", "--listen-address", f"127.0.0.1:{free_port()}"]
    command += ["--tls-cert-file", str(certificate), "--tls-private-key-file", str(key)]
    command += ["--ca-cert-file", str(authority), "--webhook-url", f"https://127.0.0.1:{ours}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "optsched.cli.main", *command], stderr=subprocess.DEVNULL
        ),
        subprocess.Popen(
            [sys.executable, "-m", "bench.admission", "--nothing", str(other), str(folder)]
        ),
    ]
    try:
        yield f"https://127.0.0.1:{ours}", f"https://127.0.0.1:{other}"
    finally:
        for each in started:
            each.terminate()
            each.wait()


# --- the client ----------------------------------------------------------------------------------


class Asker:
    """A client of one webhook that acts like an API server.

    `seconds` lists the latency of each review.
    """

    def __init__(self, http: aiohttp.ClientSession, server: str) -> None:
        self._http, self._server = http, server
        self.seconds: list[float] = []

    async def until_ready(self) -> None:
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError):
                body = review(0, job(0))
                async with self._http.post(self._server + PATHS[0], json=body) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self._server} does not answer")

    async def ask(self, path: str, body: str) -> dict[str, Any]:
        began = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        async with self._http.post(self._server + path, data=body, headers=headers) as answer:
            said = await answer.read()
        self.seconds.append(time.perf_counter() - began)
        assert answer.status == 200, said
        response: dict[str, Any] = json.loads(said)["response"]
        assert response["allowed"], response
        return response

    async def submit(self, number: int) -> None:
        """Send one job to both paths, and apply the patch of the first review before the second."""
        obj = job(number)
        filled = await self.ask(PATHS[0], json.dumps(review(number, obj)))
        if "patch" in filled:
            patched(obj, json.loads(base64.b64decode(filled["patch"])))
            assert obj["spec"]["plugins"]["svc"] == [], obj
        await self.ask(PATHS[1], json.dumps(review(number, obj)))

    async def turn(self, first: int) -> None:
        """Submit jobs for `TURN_S` at the fixed rate, without waiting for responses."""
        start, asked = time.perf_counter(), []
        for i in range(round(PER_SECOND * TURN_S)):
            await asyncio.sleep(max(0.0, start + i / PER_SECOND - time.perf_counter()))
            asked.append(asyncio.create_task(self.submit(first + i)))
        await asyncio.gather(*asked)


def patched(obj: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Apply a JSON patch of additions and replacements to an object."""
    for step in steps:
        assert step["op"] in ("add", "replace"), step
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        )
        place: Any = obj
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, dict):
            place[last] = step["value"]
        elif last == "-":
            place.append(step["value"])
        else:
            place[int(last)] = step["value"]


def percentile(seconds: list[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of the latencies, in milliseconds."""
    return 1000 * sorted(seconds)[int(len(seconds) * share)]


async def run(servers: tuple[str, str], turns: int, say: Callable[[str], None]) -> bool:
    connector = aiohttp.TCPConnector(ssl=False, limit=64)
    async with aiohttp.ClientSession(connector=connector) as http:
        ours, other = (Asker(http, server) for server in servers)
        await ours.until_ready()
        await other.until_ready()
        for each in (ours, other):
            await each.turn(0)
            each.seconds.clear()
        for number in range(turns):
            await ours.turn(1000 * number)
            await other.turn(1000 * number)
    for name, each in (("ours", ours), ("nothing", other)):
        figures = (f"p{100 * s:.0f} {percentile(each.seconds, s):.2f} ms" for s in (0.5, 0.9, 0.99))
        say(f"{name}: {len(each.seconds)} reviews, {', '.join(figures)}")
    times = percentile(ours.seconds, 0.99) / percentile(other.seconds, 0.99)
    median = percentile(ours.seconds, 0.5)
    say(f"p50 {median:.2f} ms (≤ {MOST_P50_MS:.0f} ms); p99 {times:.1f} times (≤ 3) the other's")
    return median <= MOST_P50_MS and times <= MOST_TIMES_P99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--nothing", nargs=2, metavar=("PORT", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nothing:
        port, folder = given.nothing
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(nothing(int(port), Path(folder)))
        return
    say = lambda message: print(message, flush=True)  # noqa: E731
    options = Options(definitions=shipped("crds"))
    with (
        tempfile.TemporaryDirectory(prefix="optsched-") as directory,
        ControlPlane.start(Path(directory) / "plane", require(say), options) as plane,
    ):
        plane.kubectl.apply(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "Queue",
                "metadata": {"name": "default"},
                "spec": {"weight": 1},
            }
        )
        with processes(plane, Path(directory)) as servers:
            reached = asyncio.run(run(servers, given.turns, say))
    say("every target reached" if reached else "a target was MISSED")


if __name__ == "__main__":
    main()
