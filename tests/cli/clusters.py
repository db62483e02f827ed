"""A fake cluster for the tests of commands, and functions that create short objects for it."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from optsched.api.kinds import JOB, POD, QUEUE, Ref
from optsched.cli.main import main
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.kube.client import client
from optsched.kube.client.errors import AlreadyExists, Conflict, Forbidden, NotFound
from optsched.kube.client.listing import EVERYTHING, Page, Selection
from tests.kube.fakes import FakeApi

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from click.testing import Result

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Raw

CONTEXT = "team-a"
"""The namespace of the current context."""


class FakeCluster(FakeApi):
    """An in-memory cluster that selects objects by namespace, labels (`a` or `a=b`) and names.

    `lines` are the events that a watch sends. `absent` are the object kinds that are not installed,
    `forbidden` those that the user may not list. `warnings` are sent with the response to each
    creation. `fault`, if set, is the error with which every request fails.
    """

    namespace = CONTEXT

    def __init__(self, *objects: Raw) -> None:
        super().__init__(*objects)
        self.lines: list[dict[str, Any]] = []
        self.absent: set[Kind] = set()
        self.forbidden: set[Kind] = set()
        self.selections: list[Selection] = []
        self.warnings: list[str] = []
        self.fault: KubeError | None = None
        self.on_warning: Callable[[str], None] = print
        self.places: list[tuple[str, str]] = []
        self.admitted: Callable[[Ref, Raw], Raw] = lambda _, body: body

    async def read(self, ref: Ref) -> Raw:
        self._known(ref.kind)
        return await super().read(ref)

    async def read_metadata(self, ref: Ref) -> Raw:
        """Return the metadata of an object."""
        return {"metadata": (await self.read(ref))["metadata"]}

    async def create(self, ref: Ref, body: Raw, *, dry_run: bool = False) -> Raw:
        if dry_run:
            await self._begin("create_dry_run", ref)
            if ref in self.objects:
                raise AlreadyExists(409, "AlreadyExists", f"{ref} exists already")
            return self.admitted(ref, copy.deepcopy(body))
        self._known(ref.kind)
        body = copy.deepcopy(body)
        if generated := body["metadata"].pop("generateName", ""):
            body["metadata"]["name"] = f"{generated}x{len(self.writes)}"
        for warning in self.warnings:
            self.on_warning(warning)
        return await super().create(Ref(ref.kind, ref.namespace, body["metadata"]["name"]), body)

    async def patch(
        self, ref: Ref, body: Raw, subresource: str = "", *, dry_run: bool = False
    ) -> Raw:
        if dry_run:
            await self._begin("patch_dry_run", ref)
            kept = self._get(ref)
            return self.admitted(ref, {**kept, "spec": {**kept["spec"], **body["spec"]}})
        return await super().patch(ref, body, subresource)

    async def delete(self, ref: Ref, uid: str = "") -> Raw:
        await self._begin("delete", ref)
        if self._get(ref)["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "another uid")
        return self.objects.pop(ref)

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        self._known(kind)
        if kind in self.forbidden:
            raise Forbidden(403, "Forbidden", f"{kind.plural} is forbidden")
        self.selections.append(selection)
        page = await super().list_page(kind, limit, token)
        items = [obj for obj in page.items if _is_in(obj, selection)]
        return Page([_item(obj) for obj in items], page.resource_version, page.token)

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        await self._begin("watch", kind, resource_version)
        for line in self.lines:
            yield json.dumps(line).encode()
        await asyncio.Event().wait()

    async def _begin(self, method: str, *arguments: object) -> None:
        await super()._begin(method, *arguments)
        if self.fault is not None:
            raise self.fault

    def _known(self, kind: Kind) -> None:
        if kind in self.absent:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")

    def one(self, kind: Kind) -> Raw:
        """Return the only object of a kind."""
        (found,) = self.of(kind)
        return found


def _item(obj: Raw) -> Raw:
    """Return an object as a list response shows it: without `apiVersion` and `kind`."""
    return {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}


def _is_in(obj: Raw, selection: Selection) -> bool:
    meta = obj["metadata"]
    labels = meta.get("labels", {})
    name, _, value = selection.labels.partition("=")
    fields = dict(part.split("=") for part in selection.fields.split(",") if part)
    about = {f"involvedObject.{k}": v for k, v in obj.get("involvedObject", {}).items()}
    seen = {"metadata.name": meta["name"], "reason": obj.get("reason"), **about}
    return (
        selection.namespace in ("", meta.get("namespace", ""))
        and (not name or name in labels)
        and (not value or labels[name] == value)
        and all(seen.get(field) == wanted for field, wanted in fields.items())
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Return the fake cluster to which all commands connect."""
    stand_in = FakeCluster()

    @asynccontextmanager
    async def connect(
        kubeconfig: str, server: str, on_warning: Callable[[str], None]
    ) -> AsyncIterator[FakeCluster]:
        await asyncio.sleep(0)
        stand_in.places.append((kubeconfig, server))
        stand_in.on_warning = on_warning
        yield stand_in

    monkeypatch.setattr(client, "connect", connect)
    return stand_in


def optsched(*arguments: object, **more: Any) -> Result:
    """Run a command and return its result."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **more)


def answer(result: Result) -> Any:
    """Check that a command succeeded, and return the JSON that it printed."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def values(text: str) -> list[Any]:
    """Return the values of all documents in a YAML text."""
    return [document.value for document in read_yaml(text) if isinstance(document, Document)]


def job(name: str = "train", namespace: str = CONTEXT, **status: Any) -> dict[str, Any]:
    """Return a job of two tasks with four pods.

    `status` are the fields of its status; `phase` stands for the phase in `status.state`.
    """
    phase = status.pop("phase", "")
    container = {"name": "main", "image": "busybox"}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "queue": "default",
            "minAvailable": 3,
            "tasks": [
                {"name": "ps", "replicas": 1, "template": template},
                {"name": "worker", "replicas": 3, "template": template},
            ],
        },
        "status": {**({"state": {"phase": phase}} if phase else {}), **status},
    }


def queue(name: str, parent: str = "", **more: Any) -> dict[str, Any]:
    """Return a queue. `more` holds its `status` and further fields of its spec."""
    status = more.pop("status", {"state": "Open"})
    spec = {"weight": 1, **({"parent": parent} if parent else {}), **more}
    head = {"apiVersion": QUEUE.api_version, "kind": QUEUE.kind, "metadata": {"name": name}}
    return {**head, "spec": spec, "status": status}


def pod(name: str, namespace: str = CONTEXT, **more: Any) -> dict[str, Any]:
    """Return a running pod of one container. `more` are further fields of its metadata."""
    meta = {"name": name, "namespace": namespace, **more}
    state = {"name": "main", "ready": True, "state": {"running": {}}, "restartCount": 2}
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": meta,
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [state]},
    }
