"""env: which pod of its task a container is in, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.controllers.job.plugins.base import Plugin, variable
from optsched.controllers.job.pod_draft import add_env

if TYPE_CHECKING:
    from optsched.controllers.job.plugins.flags import Flags
    from optsched.controllers.job.pod_draft import Draft


def dress(draft: Draft, flags: Flags) -> None:
    """Add the variables; the two numbers of pods are ours, for guides promise them."""
    add_env(
        draft.all_containers,
        variable("VK_TASK_INDEX", draft.index),
        variable("VC_TASK_INDEX", draft.index),
        variable("VK_TASK_NUM", draft.task.replicas),
        variable("VC_TASK_NUM", draft.task.replicas),
    )


ENV = Plugin("env", (), dress)
