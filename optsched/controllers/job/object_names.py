"""Names of a job's objects. Each name is derived from the job, so each object exists only once.

Source: Volcano, pkg/controllers/job/helpers/helpers.go and job_controller_actions.go.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from optsched.api.json_fields import subobject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import Job, TaskSpec


def pod_name(job: str, task: str, index: int) -> str:
    """Return `<job>-<task>-<index>`, the name of a pod."""
    return f"{job}-{task}-{index}"


def group_name(job: Job) -> str:
    """Return `<job>-<uid>`, the name of the job's PodGroup."""
    return f"{job.meta.name}-{job.meta.uid}"


def claim_name(job: Job, position: int) -> str:
    """Return `<job>-pvc-<12 hexadecimal digits>`, the name of the claim for a volume of the job."""
    letters = sha256(f"{job.meta.uid}/{position}".encode()).hexdigest()[:12]
    return f"{job.meta.name}-pvc-{letters}"


def variable_of(task: str) -> str:
    """Return a task's name in environment variable names, such as MY_TASK for `my-task`."""
    return task.replace("-", "_").upper()


def host(job: str, task: TaskSpec, index: int) -> tuple[str, str]:
    """Return the host name of a task's pod, and the DNS name by which other pods reach the pod."""
    spec = template_spec(task)
    hostname = spec.get("hostname") or pod_name(job, task.name, index)
    return hostname, f"{hostname}.{spec.get('subdomain') or job}"


def hosts(job: str, task: TaskSpec) -> list[tuple[str, str]]:
    """Return the result of `host` for each pod of the task.

    If the template sets a host name, all pods share this name, and the list has at most one item.
    """
    if template_spec(task).get("hostname"):
        return [host(job, task, 0)] if task.replicas else []
    # Each reconciliation of a job with the plugin svc needs all its host names.
    domain = template_spec(task).get("subdomain") or job
    prefix = pod_name(job, task.name, 0)[:-1]
    names = [f"{prefix}{index}" for index in range(task.replicas)]
    return [(name, f"{name}.{domain}") for name in names]


def addresses(job: str, task: TaskSpec) -> list[str]:
    """Return the DNS names by which other pods reach the pods of the task."""
    return [address for _, address in hosts(job, task)]


def template_spec(task: TaskSpec) -> Mapping[str, Any]:
    """Return the pod spec of the task's template; empty if the template has no pod spec."""
    return subobject(task.template, "spec")
