"""mpi: the master knows its workers, and all of them listen for ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.controllers.job.object_names import addresses
from optsched.controllers.job.plugins.base import Plugin, task_named, variable
from optsched.controllers.job.pod_draft import add_env, add_port

if TYPE_CHECKING:
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft


def dress(draft: Draft, flags: Flags) -> None:
    """Open the port, and tell the master the hosts of its workers."""
    add_port(draft.all_containers, "mpijob-port", flags.number("port"))
    worker = task_named(draft.job, flags.text("worker"))
    if draft.task.name == flags.text("master") and worker is not None:
        found = ",".join(addresses(draft.job.meta.name, worker))
        add_env(draft.all_containers, variable("MPI_HOST", found))


MPI = Plugin(
    "mpi",
    (("master", "master"), ("worker", "worker"), ("port", 22)),
    dress,
    needs=("svc", "ssh"),
)
