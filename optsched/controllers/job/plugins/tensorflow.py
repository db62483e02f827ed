"""tensorflow: the cluster and the pod's place in it, as TF_CONFIG."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from optsched.controllers.job.object_names import host
from optsched.controllers.job.plugins.base import Plugin, task_named, variable
from optsched.controllers.job.pod_draft import add_env

if TYPE_CHECKING:
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft

_ROLES: Final = ("ps", "worker", "chief", "evaluator")


def dress(draft: Draft, flags: Flags) -> None:
    """Add the variable, unless the pod is the whole job."""
    job = draft.job
    if len(job.spec.tasks) == 1 and draft.task.replicas == 1:
        return
    cluster = {}
    for role in _ROLES:
        task = task_named(job, flags.text(role))
        if task is not None and task.replicas:
            found = [host(job.meta.name, task, i)[1] for i in range(task.replicas)]
            cluster[role] = [f"{address}:{flags.number('port')}" for address in found]
    role_of = {flags.text(role): role for role in _ROLES}
    place = {"type": role_of.get(draft.task.name, draft.task.name), "index": draft.index}
    config = json.dumps({"cluster": cluster, "task": place}, separators=(",", ":"))
    add_env(draft.containers, variable("TF_CONFIG", config))


TENSORFLOW = Plugin(
    "tensorflow", (*((role, role) for role in _ROLES), ("port", 2222)), dress, needs=("svc",)
)
