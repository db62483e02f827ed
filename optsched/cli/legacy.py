"""Volcano's old commands: vsub, vcancel, vjobs, vqueues, vsuspend and vresume.

In Volcano's old commands, `-n` is the name and `-N` the namespace. In `vcctl`, `-n` is the
namespace and `-N` the name.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.api.kinds import JOB, QUEUE, Ref
from optsched.cli.base.command_errors import ExitCodeCommand
from optsched.cli.base.connection import call_cluster, cluster_options, list_kind, read_object
from optsched.cli.base.options import output_option, show_list
from optsched.cli.base.table_columns import OLD_QUEUES
from optsched.cli.live.job_commands import (
    ABORT,
    RESUME,
    create_jobs,
    delete_job,
    send_command,
    show_job,
    show_jobs,
)
from optsched.cli.live.manifests import AMOUNTS, COUNT, DEFAULT_AMOUNTS, JobFlags, job_manifest
from optsched.cli.live.target_names import Target, check_name, complete_names, single_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cli.base.connection import Connection
    from optsched.cli.base.options import Command

NAMESPACE_VARIABLE: Final = "VOLCANO_DEFAULT_JOB_NAMESPACE"
IMAGE_VARIABLE: Final = "VOLCANO_DEFAULT_IMAGE"
SCHEDULER_VARIABLE: Final = "VOLCANO_SCHEDULER_NAME"

_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}
_VERSION: Final = click.version_option(__version__, prog_name="optsched")


def _target_options(command: Command) -> Command:
    """Add `-N` (namespace), `-n` (name) and NAME to a command, which gets them as `target`."""

    @click.option(
        "-N",
        "--namespace",
        default="",
        show_default="the current context's",
        help="The job's namespace.",
    )
    @click.option("-n", "--name", default="", help="Name of the job.")
    @click.argument("positional", metavar="NAME", default="", shell_complete=complete_names(JOB))
    @functools.wraps(command)
    def wrapped(name: str, namespace: str, positional: str, **flags: Any) -> Any:  # noqa: ANN401
        target = Target(single_name((positional, name), "names"), check_name(namespace))
        return command(target=target, **flags)

    return wrapped  # type: ignore[return-value]  # `wrapped` and `command` have different parameters


def _job_command(run: Callable[..., None]) -> click.Command:
    """Return one of Volcano's old job commands, with the options that all of them share."""
    command = click.command(cls=ExitCodeCommand, context_settings=_SETTINGS)
    return command(_VERSION(cluster_options(output_option()(_target_options(run)))))


def _require_name(target: Target) -> Target:
    if not target.name:
        raise click.UsageError(
            "a name is missing: write the job's name after the command, or after -n"
        )
    return target


@_job_command
@click.option("-i", "--image", envvar=IMAGE_VARIABLE, default="busybox", show_default=True)
@click.option("-m", "--min", "minimum", type=COUNT, default=1, show_default=True)
@click.option("-r", "--replicas", type=COUNT, default=1, show_default=True)
@click.option("-R", "--requests", type=AMOUNTS, default=DEFAULT_AMOUNTS, show_default=True)
@click.option("-L", "--limits", type=AMOUNTS, show_default="the requests")
@click.option("-S", "--scheduler", envvar=SCHEDULER_VARIABLE, default="volcano", show_default=True)
@click.option("-c", "--command", default="", help="Command line of the container.")
def vsub(connection: Connection, form: str, target: Target, **flags: Any) -> None:  # noqa: ANN401
    """Create a job.

    The environment variables VOLCANO_DEFAULT_IMAGE, VOLCANO_SCHEDULER_NAME and
    VOLCANO_DEFAULT_JOB_NAMESPACE set defaults.
    """
    namespace = target.namespace or os.environ.get(NAMESPACE_VARIABLE, "")
    job = job_manifest(JobFlags(name=_require_name(target).name, **flags), namespace)
    create_jobs(connection, form, [job], namespace)


@_job_command
def vcancel(connection: Connection, form: str, target: Target) -> None:
    """Delete a job and its pods."""
    delete_job(connection, form, _require_name(target), "cancel")


@_job_command
def vsuspend(connection: Connection, form: str, target: Target) -> None:
    """Suspend a job: delete its pods until the job is resumed."""
    send_command(connection, form, _require_name(target), ABORT)


@_job_command
def vresume(connection: Connection, form: str, target: Target) -> None:
    """Resume a suspended job."""
    send_command(connection, form, _require_name(target), RESUME)


@_job_command
@click.option("-S", "--scheduler", default="", help="Only jobs of this scheduler.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("--selector", default="", help="Only jobs whose names contain this text.")
def vjobs(
    connection: Connection, form: str, target: Target, *, all_namespaces: bool, **which: str
) -> None:
    """Show one job, or list jobs."""
    if target.name:
        show_job(connection, form, target)
    else:
        show_jobs(connection, form, None if all_namespaces else target.namespace, which)


@click.command(cls=ExitCodeCommand, context_settings=_SETTINGS)
@_VERSION
@cluster_options
@output_option()
@click.argument("positional", metavar="NAME", default="", shell_complete=complete_names(QUEUE))
@click.option("-n", "--name", default="", help="Name of the queue.")
def vqueues(connection: Connection, form: str, positional: str, name: str) -> None:
    """Show one queue, or list all queues."""
    wanted = single_name((positional, name), "names")
    if wanted:
        found = [
            call_cluster(connection, lambda client: read_object(client, Ref(QUEUE, "", wanted)))
        ]
    else:
        found = call_cluster(connection, lambda client: list_kind(client, QUEUE))
    show_list(QUEUE, found, form, OLD_QUEUES)


COMMANDS: Final = (vcancel, vjobs, vqueues, vresume, vsub, vsuspend)
