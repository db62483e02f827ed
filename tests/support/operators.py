"""Simulate operators that use optsched: Argo, Kubeflow and Spark.

The operators are not installed here. Argo creates the manifest of a step, and reads the conditions
of the created object. Kubeflow's training operator creates a PodGroup with the name of the job. Its
pods name the PodGroup by `scheduling.k8s.io/group-name`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from optsched.formats.files.yaml_text import Document, read_yaml
from tests.support.api import Api, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.api import Raw

PERIOD_S = 0.2
GROUP = "scheduling.k8s.io/group-name"
WORKFLOWS = "/apis/argoproj.io/v1alpha1/namespaces/default/workflows"
PYTORCH_JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(api_version: str, kind: str) -> Raw:
    """Return a CustomResourceDefinition that accepts any field."""
    group, version = api_version.split("/")
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{**served, "schema": {"openAPIV3Schema": anything}}],
        },
    }


KINDS = (
    definition("argoproj.io/v1alpha1", "Workflow"),
    definition("kubeflow.org/v1", "PyTorchJob"),
)


def holds(condition: str, obj: Raw) -> bool:
    """Return whether an Argo condition is true.

    A condition has the form `a.field = value` or `a.field in (this, that)`.
    """
    path, operator, values = condition.split(maxsplit=2)
    found: Any = obj
    for field in path.split("."):
        found = (found or {}).get(field)
    wanted = [value.strip() for value in values.strip("()").split(",")]
    assert operator in ("=", "in")
    return found in wanted


class Operators:
    """A context in which simulated Argo and Kubeflow operators run."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = Api(kubeconfig)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Self:
        for each in KINDS:
            self._api.post(DEFINITIONS, each)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._api.close()

    def _play(self) -> None:
        """Run rounds despite refusals, because objects may be deleted at any time."""
        try:
            while not self._over.wait(PERIOD_S):
                self._round()
        finally:
            self._api.close()

    def _round(self) -> None:
        with suppress(Refused):
            for workflow in self._api.items(WORKFLOWS):
                self._argo(workflow)
        with suppress(Refused):
            for job in self._api.items(PYTORCH_JOBS):
                self._kubeflow(job)

    def _argo(self, workflow: Raw) -> None:
        [step] = [t["resource"] for t in workflow["spec"]["templates"] if "resource" in t]
        [document] = read_yaml(step["manifest"])
        assert isinstance(document, Document)
        body = document.value
        path = object_path(kinds.JOB, "default", body["metadata"]["name"])
        job = self._api.find(path)
        if job is None and "status" not in workflow:
            body["metadata"]["ownerReferences"] = [owner(workflow)]
            job = self._api.post(collection_path(kinds.JOB, "default"), body)
        ends = {"Succeeded": step["successCondition"], "Failed": step["failureCondition"]}
        reached = [phase for phase, condition in ends.items() if holds(condition, job or {})]
        phase = reached[0] if reached else "Running"
        if job is not None and workflow.get("status", {}).get("phase") != phase:
            self._api.patch(
                f"{WORKFLOWS}/{workflow['metadata']['name']}", {"status": {"phase": phase}}
            )

    def _kubeflow(self, job: Raw) -> None:
        name = job["metadata"]["name"]
        path = object_path(kinds.POD_GROUP, "default", name)
        if self._api.find(path) is not None:
            return
        self._api.post(collection_path(kinds.POD_GROUP, "default"), group_of(job))
        for pod in pods_of(job):
            self._api.post(collection_path(kinds.POD, "default"), pod)


def owner(obj: Raw) -> Raw:
    """Return an owner reference, so that an owned object is deleted with its owner."""
    meta = obj["metadata"]
    head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "controller": True}
    return {**head, "name": meta["name"], "uid": meta["uid"], "blockOwnerDeletion": False}


def group_of(job: Raw) -> Raw:
    """Return the PodGroup that the training operator creates."""
    policy = job["spec"]["runPolicy"]["schedulingPolicy"]
    return {
        "apiVersion": kinds.POD_GROUP.api_version,
        "kind": "PodGroup",
        "metadata": {"name": job["metadata"]["name"], "ownerReferences": [owner(job)]},
        "spec": {"minMember": policy["minAvailable"], "queue": policy["queue"]},
    }


def pods_of(job: Raw) -> Iterator[Raw]:
    """Yield the pods that the training operator creates."""
    name = job["metadata"]["name"]
    for replica, each in job["spec"]["pytorchReplicaSpecs"].items():
        role = replica.lower()
        for index in range(each["replicas"]):
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{role}-{index}",
                    "labels": {"training.kubeflow.org/job-name": name},
                    "annotations": {GROUP: name, "volcano.sh/task-spec": role},
                    "ownerReferences": [owner(job)],
                },
                "spec": {**each["template"]["spec"], "schedulerName": "volcano"},
            }
