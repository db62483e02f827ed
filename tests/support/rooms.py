"""A separate namespace in a cluster that runs scheduler, controllers and webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.support.api import until
from tests.support.live import COMPLETE
from tests.support.livejobs import LiveJob
from tests.support.webhooks import make_namespace

if TYPE_CHECKING:
    from tests.support.api import Raw
    from tests.support.together import Together

HOLD = "optsched.io/held"


class Room:
    """The namespace of one test, in a cluster that other tests may use at the same time."""

    def __init__(self, cluster: Together, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.api = cluster.api
        make_namespace(self.api, name)

    def suit(self, job: Raw) -> None:
        """Leave the job unchanged, because the webhook sets its defaults."""

    def job(self, body: Raw) -> LiveJob:
        """Create a job through the API server, like a user."""
        return LiveJob(self, body)

    def change_pod(self, name: str, patch: Raw) -> None:
        """Change a pod by a merge patch."""
        self.api.patch(object_path(kinds.POD, self.name, name), patch)

    def end_pod(self, name: str, how: str = COMPLETE) -> None:
        """End a pod by an annotation with the key `how`."""
        self.change_pod(name, {"metadata": {"annotations": {how: ""}}})

    def delete_pod(self, name: str) -> None:
        """Delete a pod immediately."""
        self.api.delete(object_path(kinds.POD, self.name, name))

    def evict_pod(self, name: str) -> None:
        """Evict a pod, like `kubectl drain`."""
        path = f"{object_path(kinds.POD, self.name, name)}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.api.post(path, body)

    def hold(self, *pods: str) -> None:
        """Add a finalizer to pods, so that deleted pods stay terminating."""
        for pod in pods:
            self.change_pod(pod, {"metadata": {"finalizers": [HOLD]}})

    def let_go(self) -> None:
        """Remove the finalizers of all held pods."""
        for pod in self.pods():
            if pod["metadata"].get("finalizers"):
                self.change_pod(pod["metadata"]["name"], {"metadata": {"finalizers": None}})

    def pods(self) -> list[Raw]:
        """Return all pods of the namespace."""
        return self.api.items(collection_path(kinds.POD, self.name))

    def events(self, name: str, reason: str) -> list[str]:
        """Return the event messages about an object with a reason."""
        found = self.api.items(collection_path(kinds.EVENT, self.name))
        return [
            event["message"]
            for event in found
            if (event["involvedObject"].get("name"), event["reason"]) == (name, reason)
        ]

    def find(self, kind: kinds.Kind, name: str) -> Raw | None:
        """Return an object of the namespace, or None if it does not exist."""
        return self.api.find(object_path(kind, self.name, name))

    def make(self, kind: kinds.Kind, body: Raw) -> Raw:
        """Create an object in the namespace."""
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return self.api.post(collection_path(kind, self.name), whole)

    def await_(self, probe: Any, what: str) -> Any:
        """Wait for a condition, and print the objects of the namespace on a timeout."""
        try:
            return until(probe, what)
        except AssertionError:
            print(self.cluster.kubectl("get", "vcjob,podgroups,pods", "-n", self.name).stdout)
            raise
