"""Two tenants of one namespace with the chart's roles, and all components that guard them.

Authorization is on. Webhook and controllers run with the rights of their manifests. The queue `lab`
lists Ann as a user. Eve may use the queue `students` by plain RBAC, and every user may use
`default`.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.api.wellknown import SUBMITTER, parse_submitters
from optsched.local.assets import shipped
from tests.support.api import Refused, until
from tests.support.live import Controllers
from tests.support.shared import ROOT
from tests.support.webhooks import SYSTEM, Webhook, free_port, make_namespace, registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

SPACE = "tenants-shared"
SCHEDULER = "volcano"
QUEUE_KEY = "scheduling.volcano.sh/queue-name"
GROUP_KEY = "scheduling.k8s.io/group-name"
RBAC = "rbac.authorization.k8s.io"

Raw = dict[str, Any]


class Stage:
    """The administrator and two tenants."""

    def __init__(self, api: Api, controllers: Controllers, scheduler_config: Path) -> None:
        self.admin = api
        self._folder = scheduler_config.parent
        self.scheduler_config = scheduler_config
        self._controllers = controllers
        self.ann = api.as_user("ann", "labs")
        self.eve = api.as_user("eve", "students")
        self.controller = api.as_user(f"system:serviceaccount:{SYSTEM}:optsched-controllers")
        self.scheduler = api.as_user(f"system:serviceaccount:{SYSTEM}:optsched-scheduler")
        # The webhook configurations do not exempt this user name.
        self.other_scheduler = api.as_user("other-scheduler")

    def path(self, kind: kinds.Kind, name: str = "") -> str:
        return object_path(kind, SPACE, name) if name else collection_path(kind, SPACE)

    def find(self, kind: kinds.Kind, name: str) -> Raw | None:
        return self.admin.find(self.path(kind, name))

    def num_looks(self) -> float:
        """Return the number of reconciliations of controllers."""
        return self._controllers.metric("optsched_controller_looks_total")

    def logs(self) -> list[str]:
        """Return the logs of all components so far."""
        return [path.read_text() for path in sorted(self._folder.glob("*.log"))]

    def num_refused(self) -> float:
        """Return the number of refused controller requests."""
        return self._controllers.metric("optsched_controller_looks_total", result="refused")

    def events(self, name: str) -> list[str]:
        """Return the event messages about an object."""
        found = self.admin.items(self.path(kinds.EVENT))
        return [str(e.get("message")) for e in found if e["involvedObject"]["name"] == name]


def role(name: str, *queues: str) -> Raw:
    rule = {
        "apiGroups": [kinds.QUEUE.group],
        "resources": ["queues"],
        "resourceNames": list(queues),
        "verbs": ["use"],
    }
    return {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}


def binding(name: str, role: str, *subjects: tuple[str, str], kind: str = "RoleBinding") -> Raw:
    return {
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": k, "name": n} for k, n in subjects],
    }


def grant(api: Api) -> Iterator[str]:
    """Give the tenants the chart's roles and access to queues, and yield the created paths."""
    chart = yaml.safe_load_all((ROOT / "deploy" / "volcano-development.yaml").read_text())
    roles = [r for r in chart if r and r["metadata"]["name"].startswith("volcano-tenant-")]
    assert {each["kind"] for each in roles} == {"ClusterRole"}
    everybody = ("Group", "system:authenticated")
    bodies = [
        *roles,
        role("use-default", "default"),
        role("use-students", "students"),
        binding("use-default", "use-default", everybody, kind="ClusterRoleBinding"),
        binding("use-students", "use-students", ("Group", "students")),
        binding(
            "other-scheduler",
            "optsched-scheduler",
            ("User", "other-scheduler"),
            kind="ClusterRoleBinding",
        ),
        binding("tenants", "edit", ("User", "ann"), ("User", "eve")),
    ]
    for body in bodies:
        space = f"/namespaces/{SPACE}" if body["kind"] == "RoleBinding" else ""
        path = f"/apis/{RBAC}/v1{space}/{body['kind'].lower()}s"
        api.post(path, {"apiVersion": f"{RBAC}/v1", **body})
        yield f"{path}/{body['metadata']['name']}"


def accounts(plane: ControlPlane, folder: Path) -> Iterator[Path]:
    """Yield kubeconfigs of webhook, controllers and scheduler, with the rights
    of their manifests.
    """
    for file, account in (
        ("webhook-rbac.yaml", "optsched-webhook"),
        ("controllers-rbac.yaml", "optsched-controllers"),
        ("scheduler-rbac.yaml", "optsched-scheduler"),
    ):
        plane.kubectl("apply", "-f", str(shipped("manifests", file)))
        token = plane.kubectl("create", "token", account, "-n", SYSTEM, "--duration=1h").strip()
        config = json.loads(plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = folder / account
        path.write_text(json.dumps(config))
        yield path


@contextmanager
def tenants(control_plane: ControlPlane, api: Api, folder: Path) -> Iterator[Stage]:
    """Yield a stage, with kubeconfigs and logs in a folder."""
    # An earlier test module may have deleted the namespace a moment ago.
    until(lambda: not is_terminating(api, SPACE), "the old namespace is gone")
    for name in (SYSTEM, SPACE):
        make_namespace(api, name)
    made = list(grant(api))
    webhook_config, controllers_config, scheduler_config = accounts(control_plane, folder)
    with registered(api):
        flags = ("--queue-rbac",)
        webhook = Webhook(webhook_config, folder / "webhook.log", free_port(), *flags).begin()
        flags = ("--leader-elect=false", "--no-ssh", "--scheduler-name", SCHEDULER)
        controllers = Controllers(controllers_config, folder / "controllers.log", flags).begin()
        stage = Stage(api, controllers, scheduler_config)
        queues = collection_path(kinds.QUEUE)
        try:
            for name in ("default", "students", "lab"):
                until(lambda name=name: is_queue(api, name), f"queue {name}")  # type: ignore[misc]
                # Other test modules rely on the queue `default`.
                made += [] if name == "default" else [f"{queues}/{name}"]
            until(lambda: may_edit(stage), "the roles of tenants are part of edit")
            yield stage
        finally:
            for kind in (kinds.JOB_FLOW, kinds.JOB, kinds.POD, kinds.POD_GROUP):
                api.delete(stage.path(kind))
            controllers.stop()
            webhook.stop()
            for user in (
                stage.ann,
                stage.eve,
                stage.controller,
                stage.scheduler,
                stage.other_scheduler,
            ):
                user.close()
            print(webhook.log, controllers.log)
    for path in (*made, f"/api/v1/namespaces/{SPACE}"):
        api.delete(path)
    # Other test modules use the namespace of the manifests, so it stays.
    for kind in ("clusterrole", "clusterrolebinding"):
        accounts_made = ("optsched-webhook", "optsched-controllers", "optsched-scheduler")
        control_plane.kubectl("delete", kind, *accounts_made)


def is_terminating(api: Api, namespace: str) -> bool:
    found = api.find(f"/api/v1/namespaces/{namespace}")
    return found is not None and "deletionTimestamp" in found["metadata"]


def is_queue(api: Api, name: str) -> bool:
    """Create a queue unless it exists, and return whether the queue exists.

    Return False while the webhook does not answer.
    """
    lists = {"optsched.io/users": "ann"} if name == "lab" else {}
    body = {"apiVersion": kinds.QUEUE.api_version, "kind": "Queue"}
    meta = {"name": name, "annotations": lists}
    try:
        api.post(collection_path(kinds.QUEUE), {**body, "metadata": meta, "spec": {"weight": 1}})
    except Refused as e:
        return e.code == HTTPStatus.CONFLICT
    return True


def may_edit(stage: Stage) -> bool:
    try:
        stage.eve.get(stage.path(kinds.JOB))
    except Refused:
        return False
    return True


def denial(action: Any, *given: Any) -> str:
    with pytest.raises(Refused) as caught:
        action(*given)
    assert caught.value.code == HTTPStatus.FORBIDDEN, str(caught.value)
    return str(caught.value)


def pod(name: str, *, own: Raw | None = None, **annotations: str) -> Raw:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    body["metadata"] |= {"annotations": annotations, "ownerReferences": [own] if own else []}
    containers = [{"name": "c", "image": "none"}]
    return {**body, "spec": {"schedulerName": SCHEDULER, "containers": containers}}


def group(name: str, queue: str, **annotations: str) -> Raw:
    kind = {"apiVersion": kinds.POD_GROUP.api_version, "kind": "PodGroup"}
    meta = {"name": name, "annotations": annotations}
    return {**kind, "metadata": meta, "spec": {"minMember": 1, "queue": queue}}


def job(name: str, queue: str, replicas: int = 1, **annotations: str) -> Raw:
    meta = {"name": name, "annotations": annotations}
    template = {"spec": {"containers": [{"name": "c", "image": "none"}]}}
    task = {"name": "w", "replicas": replicas, "template": template}
    kind = {"apiVersion": kinds.JOB.api_version, "kind": "Job", "metadata": meta}
    return {**kind, "spec": {"schedulerName": SCHEDULER, "queue": queue, "tasks": [task]}}


def record(obj: Raw | None) -> list[str]:
    text = (obj or {})["metadata"]["annotations"].get(SUBMITTER)
    return [subject.user for subject in parse_submitters(text)]


def group_of(stage: Stage, job: str) -> Raw | None:
    groups = stage.admin.items(stage.path(kinds.POD_GROUP))
    owned = (
        g for g in groups for o in g["metadata"].get("ownerReferences", ()) if o["name"] == job
    )
    return next(owned, None)
