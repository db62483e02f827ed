"""Jobs on a real API server, from the view of users and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tests.support.api import PATIENCE_S, until
from tests.support.live import BATCH, COMPLETE, FAIL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.api import Api, Raw


class Place(Protocol):
    """A place for jobs: a `Site` with separate schedulers, or a `Room` in a shared cluster."""

    name: str
    api: Api

    def suit(self, job: Raw) -> None:
        """Set the fields of a job for the schedulers and nodes of this place."""

    def change_pod(self, name: str, patch: Raw) -> None:
        """Change a pod by a merge patch."""

    def end_pod(self, name: str, how: str = COMPLETE) -> None:
        """End a pod by an annotation with the key `how`."""


class LiveJob:
    """One job in the namespace of a place."""

    def __init__(self, site: Place, body: Raw) -> None:
        self.site = site
        self.name = str(body["metadata"]["name"])
        self.jobs = f"/apis/{BATCH}/namespaces/{site.name}/jobs"
        body["metadata"].pop("namespace", None)
        body["metadata"].pop("uid", None)
        site.suit(body)
        self.uid = site.api.post(self.jobs, body)["metadata"]["uid"]

    # --- changes ---------------------------------------------------------------------------------

    def succeed(self, *pods: str) -> None:
        for pod in pods:
            self.site.end_pod(f"{self.name}-{pod}", COMPLETE)

    def fail(self, pod: str, code: int = 1) -> None:
        patch = {"metadata": {"annotations": {FAIL: str(code)}}}
        self.site.change_pod(f"{self.name}-{pod}", patch)

    def command(self, action: str) -> None:
        """Create a Command for the job, like vcctl."""
        target = {"apiVersion": BATCH, "kind": "Job", "name": self.name, "uid": self.uid}
        owner = {**target, "controller": True}
        path = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{self.site.name}/commands"
        meta = {"generateName": f"{self.name}-{action.lower()}-", "ownerReferences": [owner]}
        body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta}
        self.site.api.post(path, {**body, "action": action, "target": target})

    def patch(self, **spec: Any) -> None:
        self.site.api.patch(f"{self.jobs}/{self.name}", {"spec": spec})

    # --- state -----------------------------------------------------------------------------------

    @property
    def raw(self) -> Raw:
        return self.site.api.get(f"{self.jobs}/{self.name}")

    @property
    def status(self) -> Raw:
        found: Raw = self.raw.get("status", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("state", {}).get("phase", ""))

    def await_phase(self, phase: str, seconds: float = PATIENCE_S) -> Raw:
        def reached() -> Raw:
            status = self.status
            return status if status.get("state", {}).get("phase") == phase else {}

        return self._until(reached, f"{self.name} is {phase}", seconds)

    def await_count(self, phase: str = "", /, **counts: int) -> Raw:
        """Wait until the job's status has some counts, and return the status.

        With `phase`, the job must be in that phase too.
        """

        def reached() -> Raw:
            status = self.status
            is_so = phase in ("", status.get("state", {}).get("phase"))
            return status if is_so and counts.items() <= status.items() else {}

        return self._until(reached, f"{self.name} {phase} has {counts}")

    def _until(self, probe: Callable[[], Raw], what: str, seconds: float = PATIENCE_S) -> Raw:
        try:
            return until(probe, what, seconds)
        except AssertionError:
            print(f"--- {self.name}: {self.status}, pods {self.pods()}")
            raise

    @property
    def stages(self) -> list[str]:
        return [each["status"] for each in self.status["conditions"]]

    @property
    def uids(self) -> dict[str, str]:
        """The UIDs of the job's pods that are not terminating, by short pod name."""
        return {
            name: pod["metadata"]["uid"]
            for name, pod in self.pods().items()
            if "deletionTimestamp" not in pod["metadata"]
        }

    def pods(self) -> dict[str, Raw]:
        """Return the job's pods by name, without the prefix of the job."""
        path = f"/api/v1/namespaces/{self.site.name}/pods"
        found = self.site.api.items(path, labelSelector=f"volcano.sh/job-name={self.name}")
        return {pod["metadata"]["name"].removeprefix(f"{self.name}-"): pod for pod in found}

    def await_pods(self, *names: str) -> dict[str, Raw]:
        until(lambda: sorted(self.pods()) == sorted(names), f"{self.name} has pods {names}")
        return self.pods()

    def owned(self, plural: str, group: str = "") -> list[str]:
        """Return the names of the objects of a kind that the job owns."""
        root = f"/apis/{group}" if group else "/api/v1"
        found = self.site.api.items(f"{root}/namespaces/{self.site.name}/{plural}")
        return sorted(
            obj["metadata"]["name"]
            for obj in found
            if any(o["uid"] == self.uid for o in obj["metadata"].get("ownerReferences", ()))
        )
