"""Name conflicts of jobs with other objects, and the Secrets that controllers cache."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.json_fields import name_of, namespace_of
from optsched.api.kinds import CONFIG_MAP, SECRET
from optsched.controllers.job.reconcile import Options, job_controller
from optsched.kube.client.client import connect
from optsched.kube.controllers.executor import ControllerMetrics
from optsched.kube.controllers.manager import Manager, ManagerDependencies
from optsched.kube.runtime.leader_election import AlwaysLeading
from optsched.kube.runtime.timing import SystemClock, Timing
from tests.support.api import PATIENCE_S
from tests.support.livejobs import LiveJob
from tests.support.vcjobs import KEYS, job, task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from optsched.kube.runtime.events import Note
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

FOREIGN = "only-for-others"


class Recorder:
    """A recorder that keeps the notes from which events would be created."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)


def put(site: Site, plural: str, name: str, **body: Any) -> None:
    meta = {"name": name, **body.pop("metadata", {})}
    kind = {"secrets": "Secret", "configmaps": "ConfigMap"}[plural]
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": meta, **body}
    site.api.post(f"/api/v1/namespaces/{site.name}/{plural}", manifest)


@asynccontextmanager
async def controllers(site: Site) -> AsyncIterator[tuple[Manager, Recorder]]:
    """Yield the job controller and its recorder in this process, so that tests can read its state.

    The controller uses plain HTTP, because a TLS connection closes only after its client.
    """
    told = Recorder()
    async with connect(str(site.proxy().kubeconfig)) as client:
        own: Any = (told, ControllerMetrics(), AlwaysLeading(), SystemClock(), Timing())
        shell = Manager([job_controller(Options(lambda: KEYS))], ManagerDependencies(client, *own))
        task = asyncio.create_task(shell.run())
        try:
            yield shell, told
        finally:
            shell.stop()
            await task


CLOSING_S = 0.25


async def until(what: Callable[[], object], message: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.02)
    assert what(), message


async def watch_a_job_that_finds_its_names_taken(site: Site) -> None:
    async with controllers(site) as (shell, told):
        store = shell.store
        await until(lambda: not store.unsynced(), "all is listed")
        body = job(task("a"), name="j", plugins={"ssh": [], "svc": []})
        LiveJob(site, body)
        await until(lambda: "NameTaken" in [note.reason for note in told.notes], "it is told")
        await until(lambda: store.get(CONFIG_MAP, site.name, "j-svc"), "what is free is made")
        assert secrets(shell, site) == []
        assert FOREIGN not in json.dumps(list(store.listed(SECRET)))
        met = store.unfollowed_metadata(SECRET, site.name, "j-ssh")
        assert met is None or met.keys() == {"apiVersion", "kind", "metadata"}
        # The controller watches Secrets by label, but finds and labels one that lost the label.
        body = job(task("a"), name="k", plugins={"ssh": []})
        LiveJob(site, body)
        await until(lambda: secrets(shell, site) == ["k-ssh"], "it is followed")
        path = f"/api/v1/namespaces/{site.name}/secrets/k-ssh"
        bare = {"metadata": {"labels": None}}
        site.api.patch(path, bare)
        await until(lambda: "labels" in site.api.get(path)["metadata"], "it has its label")
        await until(lambda: secrets(shell, site) == ["k-ssh"], "it is followed again")
    # The client closes TLS connections in the background, which needs the loop a little longer.
    await asyncio.sleep(CLOSING_S)


def secrets(shell: Manager, site: Site) -> list[str]:
    """Return the names of the site's Secrets in the controller's store."""
    return [name_of(s) for s in shell.store.listed(SECRET) if namespace_of(s) == site.name]


def test_a_secret_of_somebody_else_is_never_known_and_never_written(site: Site) -> None:
    for name in ("j-ssh", "free"):
        put(site, "secrets", name, stringData={"key": FOREIGN})
    before = site.api.get(f"/api/v1/namespaces/{site.name}/secrets/j-ssh")
    asyncio.run(watch_a_job_that_finds_its_names_taken(site))
    after = site.api.get(f"/api/v1/namespaces/{site.name}/secrets/j-ssh")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
