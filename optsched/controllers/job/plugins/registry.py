"""The registry of job plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.controllers.job.plugins.base import read_flags
from optsched.controllers.job.plugins.frameworks import HCCLRANK, MPI, PYTORCH, RAY, TENSORFLOW
from optsched.controllers.job.plugins.ssh import SSH
from optsched.controllers.job.plugins.svc import ENV, SVC

if TYPE_CHECKING:
    from optsched.api.job import Job
    from optsched.controllers.job.plugins.base import Flags, Plugin

PLUGINS: Final = {
    plugin.name: plugin for plugin in (ENV, SVC, SSH, TENSORFLOW, PYTORCH, MPI, RAY, HCCLRANK)
}
"""Plugins by name, in the order in which they change a pod; pytorch must precede hcclrank."""


def plugins_of(job: Job) -> tuple[tuple[Plugin, Flags], ...]:
    """Return (plugin, flags) pairs for a job's plugins and for the plugins that these require."""
    given = job.spec.plugins
    needed = {need for name in given if name in PLUGINS for need in PLUGINS[name].needs}
    return tuple(
        (plugin, read_flags(tuple(given.get(name, ())), plugin.flags))
        for name, plugin in PLUGINS.items()
        if name in given or name in needed
    )


def plugin_problems(job: Job) -> tuple[str, ...]:
    """Return a message for each unknown plugin and each invalid argument of a job."""
    known = ", ".join(PLUGINS)
    unknown = (
        f"unable to find job plugin: {name}; known plugins are {known}"
        for name in job.spec.plugins
        if name not in PLUGINS
    )
    invalid = (
        f"plugin {plugin.name}: argument {problem}"
        for plugin, flags in plugins_of(job)
        for problem in flags.problems
    )
    return (*unknown, *invalid)
