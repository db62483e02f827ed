"""`optsched job`: the jobs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from optsched.api.kinds import JOB
from optsched.cli.base.command_errors import Group
from optsched.cli.base.connection import cluster_options
from optsched.cli.base.console import print_text, remarks
from optsched.cli.base.options import output_option, tenant_claim_options
from optsched.cli.objects.job_actions import (
    ABORT,
    RESUME,
    order,
    remove,
    show_job,
    show_jobs,
    show_standing_jobs,
    submit,
    watch_job,
)
from optsched.cli.objects.manifests import (
    AMOUNTS,
    COUNT,
    DEFAULT_AMOUNTS,
    JobFlags,
    check_manifests,
    file_option,
    job_manifest,
    read_manifests,
)
from optsched.cli.objects.target_names import Target, namespace_option, single_name, target_options
from optsched.cli.services.service_options import Duration

if TYPE_CHECKING:
    from optsched.cli.base.connection import Place


@click.group(cls=Group)
def job() -> None:
    """Run, list, view, watch, suspend, resume and delete batch jobs."""


# --- run -----------------------------------------------------------------------------------------


@job.command("run")
@cluster_options
@output_option()
@click.argument("positional", metavar="NAME", default="")
@click.option("-N", "--name", default="", help="The name of the job.")
@namespace_option()
@file_option("A file with jobs; - for the standard input.", "filename", default="")
@click.option("-i", "--image", default="busybox", show_default=True)
@click.option("-m", "--min", "minimum", type=COUNT, default=1, show_default=True)
@click.option("-r", "--replicas", type=COUNT, default=1, show_default=True)
@click.option("-R", "--requests", type=AMOUNTS, default=DEFAULT_AMOUNTS, show_default=True)
@click.option("-L", "--limits", type=AMOUNTS, show_default="what is requested")
@click.option("-S", "--scheduler", default="volcano", show_default=True)
@click.option("-q", "--queue", default="", show_default="default")
@click.option("-c", "--command", default="", help="What its container runs, as in a shell.")
@click.option("--priority-class", default="")
def run(place: Place, form: str, positional: str, filename: str, **flags: Any) -> None:  # noqa: ANN401
    """Create a job, from a file or from flags.

    A file may hold several jobs. The name on the command line is for one without a file, or for
    the only one in it.
    """
    namespace = flags.pop("namespace")
    name = flags["name"] = single_name((positional, flags["name"]), "names")
    if filename:
        jobs = _from_file(filename, name, namespace)
    elif name:
        jobs = [_from_flags(JobFlags(**flags), namespace)]
    else:
        raise click.UsageError("a name is missing: write it behind the command, or give -f FILE")
    submit(place, form, jobs, namespace)


def _from_flags(flags: JobFlags, namespace: str) -> dict[str, Any]:
    try:
        return job_manifest(flags, namespace)
    except ValueError as e:
        raise click.UsageError(f"--command: {flags.command!r}: a quote has no end") from e


def _from_file(path: str, name: str, namespace: str) -> list[dict[str, Any]]:
    manifests = read_manifests(path, JOB)
    check_manifests(manifests, namespace)
    if name and len(manifests) > 1:
        raise click.UsageError(f"{path} holds {len(manifests)} jobs, which can not all be {name}")
    for remark in (remark for manifest in manifests for remark in manifest.remarks):
        print_text(remarks(), f"Warning: {remark}", "yellow")
    jobs = [manifest.obj for manifest in manifests]
    return [{**jobs[0], "metadata": {**jobs[0]["metadata"], "name": name}}] if name else jobs


# --- list ----------------------------------------------------------------------------------------


@job.command("list")
@cluster_options
@output_option()
@namespace_option()
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@click.option("-q", "--queue", default="", help="Those of a queue.")
@click.option("-S", "--scheduler", default="", help="Those of a scheduler.")
@click.option("--selector", default="", help="Those with this in their names.")
@click.option("-l", "--labels", default="", help="Those with labels, such as team=vision.")
@click.option(
    "--position", "placed", is_flag=True, help="Where they wait in their queues; reads more."
)
def list_jobs(
    place: Place, form: str, namespace: str, *, all_namespaces: bool, placed: bool, **which: str
) -> None:
    """List jobs."""
    inside = None if all_namespaces else namespace
    (show_standing_jobs if placed else show_jobs)(place, form, inside, which)


# --- view ----------------------------------------------------------------------------------------


@job.command("view")
@cluster_options
@output_option()
@target_options(JOB)
def view(place: Place, form: str, target: Target) -> None:
    """Show all that is known of a job, and its events."""
    show_job(place, form, target)


# --- explain -------------------------------------------------------------------------------------


@job.command("explain")
@cluster_options
@output_option()
@tenant_claim_options
@target_options(JOB)
def explain(
    place: Place,
    form: str,
    target: Target,
    lifting_classes: tuple[str, ...],
    device_schedulers: tuple[str, ...],
) -> None:
    """Say why a job waits, where it stands in its queue, and when it could start.

    Ends with 0 unless it waits, with 8 if it does, and with 9 if it could never start.
    """
    # The rules and engines that know the order take a second to load.
    from optsched.cli.inspect.explain_job import explain_job

    explain_job(place, form, target, lifting_classes, device_schedulers)


# --- suspend, resume, delete ---------------------------------------------------------------------


@job.command("suspend")
@cluster_options
@output_option()
@target_options(JOB)
def suspend(place: Place, form: str, target: Target) -> None:
    """Take a job's pods away until it is resumed."""
    order(place, form, target, ABORT)


@job.command("resume")
@cluster_options
@output_option()
@target_options(JOB)
def resume(place: Place, form: str, target: Target) -> None:
    """Have a suspended job run again."""
    order(place, form, target, RESUME)


@job.command("delete")
@cluster_options
@output_option()
@target_options(JOB)
def delete(place: Place, form: str, target: Target) -> None:
    """Delete a job and its pods."""
    remove(place, form, target, "delete")


# --- watch ---------------------------------------------------------------------------------------


@job.command("watch")
@cluster_options
@output_option(help_text="How to print each change; name: the name, at the end.")
@click.option("--timeout", type=Duration(), help="Give up after so long, such as 90s or 2h.")
@target_options(JOB)
def watch(place: Place, form: str, timeout: int | None, target: Target) -> None:
    """Show each change of a job until it ends; the exit code tells how.

    0: it has completed. 1: it has failed, or was aborted or terminated. 3: it is gone. 7: it
    has not ended in time.
    """
    watch_job(place, form, target, timeout)
