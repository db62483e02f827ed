"""Measure the memory of scheduler and controllers as two processes over many pod lifecycles.

Run `make bench-lifecycles-http`. The cluster of `bench.lifecycles` is served over HTTP. The
resident memory is therefore that of the real processes, with their connections and logs. The memory
of a process after the first tenth and at the end must not differ by more than 10 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from bench.lifecycles import MOST_GROWTH, POLICY, Cluster, Drive
from bench.soak import resident_mib
from optsched.api.kinds import KINDS, Ref
from optsched.kube.client.errors import ApiError
from optsched.kube.client.listing import Selection
from tests.support.live import Controllers, Scheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from optsched.api.kinds import Kind

_KINDS: Final = {(kind.api_version, kind.plural): kind for kind in KINDS}


def parse(path: str) -> tuple[Kind, Ref, str]:
    """Return the kind, the object and the subresource of a path.

    Raise KeyError for a path of another kind.
    """
    words = path.strip("/").split("/")
    version, words = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
    namespace = ""
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    kind = _KINDS[version, words[0]]
    name, part = ([*words[1:], "", ""])[:2]
    return kind, Ref(kind, namespace, name), part


class Door:
    """An HTTP handler that serves the objects of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle one request."""
        try:
            kind, ref, part = parse(request.path)
        except KeyError:
            return _refusal(404, "NotFound", "the server could not find the requested resource")
        try:
            if request.method == "GET" and not ref.name:
                return await self._list(request, kind, ref.namespace)
            return web.json_response(await self._answer(request, ref, part))
        except ApiError as e:
            return _refusal(e.code, e.reason, e.message)

    async def _list(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        query, cluster = request.query, self._cluster
        chosen = Selection(
            namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        if "watch" not in query:
            page = await cluster.list_page(kind, 0, "", chosen)
            meta = {"resourceVersion": page.resource_version}
            return web.json_response({"metadata": meta, "items": list(page.items)})
        out = web.StreamResponse()
        await out.prepare(request)
        with suppress(ConnectionError):
            async for line in cluster.watch_lines(kind, query["resourceVersion"], chosen):
                await out.write(line + b"\n")
        return out

    async def _answer(self, request: web.Request, ref: Ref, part: str) -> Any:
        cluster = self._cluster
        body = await request.json() if request.can_read_body else {}
        meta = body.get("metadata", {})
        if part == "binding":
            node, marks = body["target"]["name"], meta.get("annotations")
            await cluster.bind(ref.namespace, ref.name, meta.get("uid", ""), node, marks)
            return {"kind": "Status"}
        if part == "eviction":
            held = body.get("deleteOptions", {}).get("preconditions", {})
            guards = held.get("uid", ""), held.get("resourceVersion", "")
            await cluster.evict(ref.namespace, ref.name, *guards)
            return {"kind": "Status"}
        if request.method == "POST":
            return await cluster.create(Ref(ref.kind, ref.namespace, meta["name"]), body)
        if request.method == "PATCH":
            return await cluster.patch(ref, body, part)
        if request.method == "DELETE":
            return await cluster.delete(ref, body.get("preconditions", {}).get("uid", ""))
        return await cluster.read(ref)


def _refusal(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.Response(
        status=HTTPStatus(code), text=json.dumps(status), content_type="application/json"
    )


def _write_kubeconfig(path: Path, port: int) -> None:
    server = {"server": f"http://127.0.0.1:{port}"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": server}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    }
    path.write_text(json.dumps(content))


@asynccontextmanager
async def serving(cluster: Cluster, kubeconfig: Path) -> AsyncIterator[None]:
    """Serve the cluster while the context is open, and write a kubeconfig with its address."""
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", Door(cluster).handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _write_kubeconfig(kubeconfig, runner.addresses[0][1])
    try:
        yield
    finally:
        await runner.cleanup()


async def _play(count: int, folder: Path) -> bool:
    """Run `count` pod lifecycles, and return whether the memory of both processes stays flat."""
    cluster = Cluster()
    drive = Drive(cluster)
    drive.prepare()
    kubeconfig, policy = folder / "kubeconfig", folder / "policy.conf"
    policy.write_text(POLICY)
    flags = ["--schedule-period", "50ms", "--loners", "wait", "--config", str(policy)]
    alone = "--no-leader-elect"
    first: dict[str, float] = {}
    now: dict[str, float] = {}
    async with serving(cluster, kubeconfig):
        processes = {
            "scheduler": Scheduler(
                kubeconfig,
                folder / "scheduler.log",
                [alone, *flags, "--dump-dir", str(folder)],
            ),
            "controllers": Controllers(kubeconfig, folder / "controllers.log", [alone]),
        }
        try:
            for tenth in range(1, 11):
                while drive.num_pods < tenth * count / 10:
                    await drive.play()
                now = {name: resident_mib(process) for name, process in processes.items()}
                first = first or now
                sizes = ", ".join(f"{name} {mib:.1f} MiB" for name, mib in now.items())
                print(f"{drive.num_pods:>7} pods: {sizes}", flush=True)
        finally:
            for process in processes.values():
                process.kill()
    for name, mib in now.items():
        print(f"{name}: {mib / first[name] - 1:+.1%} since the first tenth")
    return all(mib <= first[name] * (1 + MOST_GROWTH) for name, mib in now.items())


def main() -> int:
    """Run the benchmark, and return 1 if memory has grown."""
    parser = argparse.ArgumentParser(prog="python -m bench.lifecycles_http", description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="number of pods")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        is_flat = asyncio.run(_play(count, Path(folder)))
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
