"""Build the PodGroup and the pods that Volcano's controllers and webhooks create for a job."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from optsched.formats.files.yaml_text import Document, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.api import Raw

UID = "6f1c"
SCHEDULING = "scheduling.volcano.sh/v1beta1"


def documents(path: Path) -> Iterator[Raw]:
    """Yield the objects of a manifest file."""
    for document in read_yaml(path.read_text()):
        assert isinstance(document, Document), document
        yield document.value


def group_name(job: Raw) -> str:
    """Return the name of a job's PodGroup."""
    return f"{job['metadata']['name']}-{UID}"


def group_of(job: Raw) -> Raw:
    """Return the PodGroup that the controller creates for a job."""
    spec, meta = job["spec"], job["metadata"]
    wanted = {
        "minMember": spec["minAvailable"],
        "minTaskMember": {t["name"]: t.get("minAvailable", t["replicas"]) for t in spec["tasks"]},
        "queue": spec.get("queue", "default"),
        "priorityClassName": spec.get("priorityClassName"),
    }
    return {
        "apiVersion": SCHEDULING,
        "kind": "PodGroup",
        "metadata": {"name": group_name(job), "annotations": meta.get("annotations", {})},
        "spec": {field: value for field, value in wanted.items() if value is not None},
    }


def pods_of(job: Raw, scheduler: str) -> Iterator[Raw]:
    """Yield the pods that the controller creates for a job, for the named scheduler."""
    name = job["metadata"]["name"]
    for task in job["spec"]["tasks"]:
        for index in range(task["replicas"]):
            template: Raw = copy.deepcopy(task["template"])
            marks = {
                "volcano.sh/job-name": name,
                "volcano.sh/task-spec": task["name"],
                "volcano.sh/task-index": str(index),
                "volcano.sh/queue-name": job["spec"].get("queue", "default"),
            }
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{task['name']}-{index}",
                    "labels": marks,
                    "annotations": {**marks, "scheduling.k8s.io/group-name": group_name(job)},
                },
                "spec": {**_pod_spec(template["spec"]), "schedulerName": scheduler},
            }


def _pod_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Add limits for extended resources, because the API server requires them."""
    for container in spec["containers"]:
        resources = container.get("resources", {})
        devices = {r: a for r, a in resources.get("requests", {}).items() if "/" in r}
        if devices:
            resources["limits"] = {**devices, **resources.get("limits", {})}
    return spec
