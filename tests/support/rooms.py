"""A namespace of its own in a cluster where scheduler, controllers and webhook run together."""

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
    """Where the jobs of one test are; others may be in the same cluster at the same time."""

    def __init__(self, cluster: Together, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.api = cluster.api
        make_namespace(self.api, name)

    def suit(self, job: Raw) -> None:
        """A job is for whoever is there, once the webhook has filled it in."""

    def job(self, body: Raw) -> LiveJob:
        """A job, as a user makes it."""
        return LiveJob(self, body)

    def change_pod(self, name: str, patch: Raw) -> None:
        """Change a pod by a merge patch."""
        self.api.patch(object_path(kinds.POD, self.name, name), patch)

    def end_pod(self, name: str, how: str = COMPLETE) -> None:
        """Let a pod end."""
        self.change_pod(name, {"metadata": {"annotations": {how: ""}}})

    def delete_pod(self, name: str) -> None:
        """Delete a pod at once."""
        self.api.delete(object_path(kinds.POD, self.name, name))

    def evict_pod(self, name: str) -> None:
        """Evict a pod as `kubectl drain` does."""
        path = f"{object_path(kinds.POD, self.name, name)}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.api.post(path, body)

    def hold(self, *pods: str) -> None:
        """From now on pods that are deleted do not go."""
        for pod in pods:
            self.change_pod(pod, {"metadata": {"finalizers": [HOLD]}})

    def let_go(self) -> None:
        """Let all pods go that are held and deleted."""
        for pod in self.pods():
            if pod["metadata"].get("finalizers"):
                self.change_pod(pod["metadata"]["name"], {"metadata": {"finalizers": None}})

    def pods(self) -> list[Raw]:
        """All that are there."""
        return self.api.items(collection_path(kinds.POD, self.name))

    def events(self, name: str, reason: str) -> list[str]:
        """What was told of an object for a reason."""
        found = self.api.items(collection_path(kinds.EVENT, self.name))
        return [
            event["message"]
            for event in found
            if (event["involvedObject"].get("name"), event["reason"]) == (name, reason)
        ]

    def find(self, kind: kinds.Kind, name: str) -> Raw | None:
        """An object of the namespace; None where there is none."""
        return self.api.find(object_path(kind, self.name, name))

    def make(self, kind: kinds.Kind, body: Raw) -> Raw:
        """An object in the namespace."""
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return self.api.post(collection_path(kind, self.name), whole)

    def await_(self, probe: Any, what: str) -> Any:
        """Wait for something, and show what there is if it does not come."""
        try:
            return until(probe, what)
        except AssertionError:
            print(self.cluster.kubectl("get", "vcjob,podgroups,pods", "-n", self.name).stdout)
            raise
