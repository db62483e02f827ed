"""The controller of jobs, for the shell that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from optsched.controllers.commands import COMMANDS_OF, command_wakes, forgotten
from optsched.controllers.controller import Controller, owner_wakes
from optsched.controllers.job.reconcile import JobReconciler

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.kinds import Ref
    from optsched.controllers.controller import Decide
    from optsched.controllers.effects import Effects, Manifest
    from optsched.controllers.job.plugins.base import KeyPair
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


def job_controller(new_keys: Callable[[], KeyPair]) -> Controller:
    """The controller of jobs. new_keys: makes a key for ssh."""
    return Controller(
        name="job",
        kind=JOB,
        decide=_decide(JobReconciler(new_keys)),
        wakes={
            **dict.fromkeys(_OWNED, owner_wakes(JOB)),
            **dict.fromkeys((QUEUE, PRIORITY_CLASS), _nobody),
            COMMAND: command_wakes(JOB),
        },
        indexes=(COMMANDS_OF,),
    )


def _decide(reconcile: JobReconciler) -> Decide:
    def decide(ref: Ref, world: World) -> Effects:
        job = world.get(JOB, ref.namespace, ref.name)
        return forgotten(ref, world) if job is None else reconcile(job, world)

    return decide


def _nobody(obj: Manifest, world: World) -> tuple[Ref, ...]:
    return ()
