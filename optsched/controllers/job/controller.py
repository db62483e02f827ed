"""The controller of jobs, for the shell that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.api.kinds import (
    COMMAND,
    CONFIG_MAP,
    JOB,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    SECRET,
    SERVICE,
)
from optsched.controllers.bus_commands import COMMANDS_OF, command_wakes, delete_orphaned_commands
from optsched.controllers.controller import Controller, Scope, owner_wakes
from optsched.controllers.job.reconcile import JobReconciler

if TYPE_CHECKING:
    from optsched.api.kinds import Ref
    from optsched.controllers.controller import Decide
    from optsched.controllers.effects import Effects
    from optsched.controllers.job.reconcile import Options
    from optsched.controllers.world import World

_OWNED = (
    POD,
    POD_GROUP,
    CONFIG_MAP,
    SECRET,
    SERVICE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
)


SCOPES: Final = dict.fromkeys(
    (CONFIG_MAP, SECRET, SERVICE, NETWORK_POLICY), Scope(label=wellknown.JOB_NAME)
)
"""Objects of plugins have this label; controllers of jobs ignore all others of these kinds."""


def job_controller(options: Options) -> Controller:
    """The controller of jobs; without the plugin ssh it follows no Secrets."""
    has_keys = options.new_keys is not None
    owned = tuple(kind for kind in _OWNED if has_keys or kind != SECRET)
    return Controller(
        name="job",
        kind=JOB,
        decide=_decide(JobReconciler(options)),
        wakes={
            **dict.fromkeys(owned, owner_wakes(JOB)),
            COMMAND: command_wakes(JOB),
        },
        indexes=(COMMANDS_OF,),
        reads=(QUEUE, PRIORITY_CLASS),
        scopes={kind: scope for kind, scope in SCOPES.items() if kind in owned},
    )


def _decide(reconcile: JobReconciler) -> Decide:
    def decide(ref: Ref, world: World) -> Effects:
        job = world.get(JOB, ref.namespace, ref.name)
        return delete_orphaned_commands(ref, world) if job is None else reconcile(job, world)

    return decide
