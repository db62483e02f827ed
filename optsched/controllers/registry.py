"""The list of all controllers, and the parser of the option `--controllers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from optsched.controllers.cronjob import CronJobs
from optsched.controllers.hypernode import CONFIG, NODE_COUNTS, Discovery
from optsched.controllers.job.reconcile import job_controller
from optsched.controllers.jobflow import JOB_FLOWS, JOB_TEMPLATES
from optsched.controllers.podgroup import Options as PodGroupOptions
from optsched.controllers.podgroup import PodGroups
from optsched.controllers.queue import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.controllers.controller import Controller
    from optsched.controllers.job.reconcile import Options as JobOptions

EVERY = "*"
"""The value of `--controllers` that selects all controllers."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of all controllers.

    `config` is the namespace and name of the controllers' ConfigMap.
    """

    jobs: JobOptions
    podgroups: PodGroupOptions = field(default_factory=PodGroupOptions)
    config: tuple[str, str] = CONFIG


def all_controllers(options: Options) -> tuple[Controller, ...]:
    """Return every controller."""
    return (
        QUEUES,
        job_controller(options.jobs),
        PodGroups(options.podgroups).controller,
        CronJobs(ZoneInfo).controller,
        JOB_FLOWS,
        JOB_TEMPLATES,
        Discovery(options.config).controller,
        NODE_COUNTS,
    )


def chosen(controllers: Iterable[Controller], given_names: Iterable[str]) -> tuple[Controller, ...]:
    """Return the controllers that the option `--controllers` selects, as in Volcano.

    `*` selects all controllers, and `-name` excludes the controller `name`. Volcano's names of
    controllers, such as queue-controller, are accepted. Unknown excluded names are ignored. Raises
    ValueError if a selected name is unknown or no controller is selected.
    """
    every = tuple(controllers)
    known = {controller.name for controller in every}
    given = [name.strip() for name in given_names if name.strip()]
    selected = {_normalise(name) for name in given if not name.startswith("-") and name != EVERY}
    excluded = {_normalise(name.removeprefix("-")) for name in given if name.startswith("-")}
    unknown = sorted(selected - known)
    listed = ", ".join(sorted(known))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a controller: the controllers are {listed}")
    names = (known if EVERY in given else selected) - excluded
    if not names:
        raise ValueError(f"no controller is selected: name some of {listed}, or * for all")
    return tuple(controller for controller in every if controller.name in names)


def _normalise(name: str) -> str:
    name = name.removesuffix("-controller")
    return {"pg": "podgroup"}.get(name, name)
