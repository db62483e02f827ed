"""Jobs in a world in memory, in short notation and with manual steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.api.kinds import COMMAND, JOB, POD, POD_GROUP, Ref
from optsched.controllers.job.plugin_interface import KeyPair
from optsched.controllers.job.reconcile import JobReconciler, Options
from tests.support.memory import MemoryWorld

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.controllers.effects import Effect

KEYS = KeyPair("private\n", "ssh-rsa public\n")
RECONCILE = JobReconciler(Options(lambda: KEYS))


def container(**more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "busybox", **more}


def task(name: str, replicas: int = 1, /, **more: Any) -> dict[str, Any]:
    """Return a task with minimal pods, unless fields are given."""
    template = {"spec": {"containers": [container()], "restartPolicy": "Never"}}
    return {"name": name, "replicas": replicas, "template": template, **more}


def policy(event: str, action: str, **more: Any) -> dict[str, Any]:
    return {"event": event, "action": action, **more}


def job(*tasks: dict[str, Any], name: str = "j", **spec: Any) -> dict[str, Any]:
    """Return a job manifest from its tasks and spec."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "uid": f"{name}-uid", "generation": 1},
        "spec": {"tasks": list(tasks), **spec},
    }


class Play:
    """One job with its controller. Every step runs the controller until it has no effect."""

    def __init__(self, manifest: dict[str, Any], *, is_admitted: bool = True) -> None:
        self.world = MemoryWorld()
        self.ref = Ref(JOB, "default", manifest["metadata"]["name"])
        self.world.put(JOB, manifest)
        self.is_admitted = is_admitted
        self.phases: list[str] = []
        self.settle()

    # --- actions of other clients ----------------------------------------------------------------

    def admit(self, phase: str = "Inqueue") -> None:
        """Let the scheduler enqueue the gang."""
        self.is_admitted = True
        self.group_is(phase)

    def group_is(self, phase: str, *conditions: dict[str, Any]) -> None:
        status = {"phase": phase, "conditions": list(conditions)}
        group = self.group
        assert group is not None
        ref = Ref(POD_GROUP, "default", group["metadata"]["name"])
        self.world.change(ref, lambda obj: obj.update(status=status))
        self.settle()

    def run(self, *names: str) -> None:
        """Bind and run pods, by default all pending pods."""
        for name in names or self.pods_that("Pending"):
            self.world.change(self.pod_ref(name), lambda pod: pod["spec"].update(nodeName="n"))
            ready = {"containerStatuses": [{"name": "main", "ready": True, "restartCount": 0}]}
            self.world.phase(self.full(name), "Running", **ready)
        self.settle()

    def succeed(self, *names: str) -> None:
        for name in names or self.pods_that("Running"):
            self.world.phase(self.full(name), "Succeeded")
        self.settle()

    def fail(self, *names: str, code: int = 1) -> None:
        for name in names:
            end = {"name": "main", "state": {"terminated": {"exitCode": code}}}
            self.world.phase(self.full(name), "Failed", containerStatuses=[end])
        self.settle()

    def delete(self, *names: str) -> None:
        """Delete pods as a user."""
        for name in names:
            self.world.remove(self.pod_ref(name))
        self.settle()

    def vanish(self, *names: str) -> None:
        """Delete and remove pods before the controller reads them."""
        for name in names:
            self.world.remove(self.pod_ref(name))
            self.world.ended(self.full(name))
        self.settle()

    def evict(self, *names: str) -> None:
        """Evict pods as the scheduler."""
        marks = " ".join(f"{self.full(n)}={self.pod(n)['metadata']['uid']}" for n in names)
        group = self.group
        assert group is not None
        ref = Ref(POD_GROUP, "default", group["metadata"]["name"])
        mark = {"optsched.io/evicted": marks}
        self.world.change(ref, lambda obj: obj["metadata"]["annotations"].update(mark))
        for name in names:
            self.world.remove(self.pod_ref(name))

    def gone(self) -> None:
        """Remove all terminating pods, as their kubelets."""
        self.world.ended()
        self.settle()

    def command(self, action: str, *, settle: bool = True, **more: Any) -> None:
        name = f"c{len(self.world.writes)}-{action.lower()}"
        target = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": self.ref.name,
            "uid": self.manifest["metadata"]["uid"],
        }
        meta = {"name": name}
        self.world.put(COMMAND, {"metadata": meta, "action": action, "target": target, **more})
        if settle:
            self.settle()

    def edit(self, **spec: Any) -> None:
        """Change the job's spec as a user."""

        def change(obj: dict[str, Any]) -> None:
            obj["spec"].update(spec)
            obj["metadata"]["generation"] += 1

        self.world.change(self.ref, change)
        self.settle()

    # --- the controller --------------------------------------------------------------------------

    def decide(self) -> tuple[Effect, ...]:
        manifest = self.world.get(*_where(self.ref))
        return () if manifest is None else RECONCILE(manifest, self.world)

    def settle(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            before = len(self.world.writes)
            self.world.apply(self.decide())
            self._note()
            self._let_in()
            if len(self.world.writes) == before:
                return
        raise AssertionError("it never comes to rest")

    def _note(self) -> None:
        if self.exists and (not self.phases or self.phases[-1] != self.phase):
            self.phases.append(self.phase)

    def _let_in(self) -> None:
        group = self.group
        if self.is_admitted and group is not None and "status" not in group:
            ref = Ref(POD_GROUP, "default", group["metadata"]["name"])
            self.world.change(ref, lambda obj: obj.update(status={"phase": "Inqueue"}))
            self.world.apply(self.decide())

    # --- state -----------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self.world.get(*_where(self.ref)) is not None

    @property
    def manifest(self) -> dict[str, Any]:
        found = self.world.get(*_where(self.ref))
        assert found is not None
        return dict(found)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.manifest.get("status", {})
        return status

    @property
    def phase(self) -> str:
        return str(self.status.get("state", {}).get("phase", ""))

    @property
    def group(self) -> dict[str, Any] | None:
        found = self.world.listed(POD_GROUP)
        return dict(found[0]) if found else None

    @property
    def pods(self) -> list[str]:
        """The names of the pods that are not terminating, without the prefix of the job."""
        return sorted(self._short(pod) for pod in self._pods() if not _is_leaving(pod))

    @property
    def leaving(self) -> list[str]:
        return sorted(self._short(pod) for pod in self._pods() if _is_leaving(pod))

    def pods_that(self, phase: str) -> list[str]:
        return [
            self._short(pod)
            for pod in self._pods()
            if pod["status"]["phase"] == phase and not _is_leaving(pod)
        ]

    def uids(self, prefix: str = "") -> dict[str, str]:
        return {
            name: self.pod(name)["metadata"]["uid"] for name in self.pods if name.startswith(prefix)
        }

    def pod(self, name: str) -> dict[str, Any]:
        found = self.world.get(*_where(self.pod_ref(name)))
        assert found is not None, name
        return dict(found)

    def full(self, name: str) -> str:
        return f"{self.ref.name}-{name}"

    def pod_ref(self, name: str) -> Ref:
        return Ref(POD, "default", self.full(name))

    def reasons(self) -> list[str]:
        """Return the reasons of the recorded events."""
        return [event.reason for event in self.world.events]

    def _pods(self) -> Iterable[dict[str, Any]]:
        return [dict(pod) for pod in self.world.listed(POD)]

    def _short(self, pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["name"]).removeprefix(f"{self.ref.name}-")


def _where(ref: Ref) -> tuple[Any, str, str]:
    return ref.kind, ref.namespace, ref.name


def _is_leaving(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]
