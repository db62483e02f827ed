"""Names of a job's objects; the names are not random, so each object is created only once.

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
    """Return a pod's name, `<job>-<task>-<index>`."""
    return f"{job}-{task}-{index}"


def group_name(job: Job) -> str:
    """Return the name of the job's PodGroup, `<job>-<uid>`."""
    return f"{job.meta.name}-{job.meta.uid}"


def claim_name(job: Job, position: int) -> str:
    """Return the PVC name for the job volume at `position`: `<job>-pvc-<12 hexadecimal digits>`."""
    letters = sha256(f"{job.meta.uid}/{position}".encode()).hexdigest()[:12]
    return f"{job.meta.name}-pvc-{letters}"


def variable_of(task: str) -> str:
    """Return the task name used in environment variable names, such as MY_TASK for `my-task`."""
    return task.replace("-", "_").upper()


def host(job: str, task: TaskSpec, index: int) -> tuple[str, str]:
    """Return the host name of a task's pod, and the DNS name by which other pods reach it."""
    spec = template_spec(task)
    hostname = spec.get("hostname") or pod_name(job, task.name, index)
    return hostname, f"{hostname}.{spec.get('subdomain') or job}"


def hosts(job: str, task: TaskSpec) -> list[tuple[str, str]]:
    """Return the host name and the DNS name of each pod of a task.

    If the template sets a host name, all pods share it, and the list has at most one item.
    """
    if template_spec(task).get("hostname"):
        return [host(job, task, 0)] if task.replicas else []
    # Each reconciliation of a job with the plugin svc computes all host names of the job. Computing
    # the common prefix of the names once is faster than calling `host` for each pod.
    domain = template_spec(task).get("subdomain") or job
    prefix = pod_name(job, task.name, 0)[:-1]
    names = [f"{prefix}{index}" for index in range(task.replicas)]
    return [(name, f"{name}.{domain}") for name in names]


def addresses(job: str, task: TaskSpec) -> list[str]:
    """Return the DNS names by which other pods reach the task's pods."""
    return [address for _, address in hosts(job, task)]


def template_spec(task: TaskSpec) -> Mapping[str, Any]:
    """Return the pod spec of the task's template; empty if it has none."""
    return subobject(task.template, "spec")
