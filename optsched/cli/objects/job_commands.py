"""`optsched job`: commands for jobs."""

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
@click.option("-N", "--name", default="", help="Name of the job.")
@namespace_option()
@file_option("File with jobs; - is standard input.", "filename", default="")
@click.option("-i", "--image", default="busybox", show_default=True)
@click.option("-m", "--min", "minimum", type=COUNT, default=1, show_default=True)
@click.option("-r", "--replicas", type=COUNT, default=1, show_default=True)
@click.option("-R", "--requests", type=AMOUNTS, default=DEFAULT_AMOUNTS, show_default=True)
@click.option("-L", "--limits", type=AMOUNTS, show_default="the requests")
@click.option("-S", "--scheduler", default="volcano", show_default=True)
@click.option("-q", "--queue", default="", show_default="default")
@click.option("-c", "--command", default="", help="Command line of the container.")
@click.option("--priority-class", default="")
def run(place: Place, form: str, positional: str, filename: str, **flags: Any) -> None:  # noqa: ANN401
    """Create a job from flags, or jobs from a file.

    A name on the command line is the name of the job; it is accepted with a file only if the file
    contains one job.
    """
    namespace = flags.pop("namespace")
    name = flags["name"] = single_name((positional, flags["name"]), "names")
    if filename:
        manifests = read_manifests(filename, JOB)
        check_manifests(manifests, namespace)
        if name and len(manifests) > 1:
            raise click.UsageError(
                f"{filename} holds {len(manifests)} jobs, which cannot all be named {name}"
            )
        for remark in (remark for manifest in manifests for remark in manifest.remarks):
            print_text(remarks(), f"Warning: {remark}", "yellow")
        jobs = [manifest.obj for manifest in manifests]
        if name:
            jobs = [{**jobs[0], "metadata": {**jobs[0]["metadata"], "name": name}}]
    elif name:
        jobs = [job_manifest(JobFlags(**flags), namespace)]
    else:
        raise click.UsageError("a name is missing: write it after the command, or give -f FILE")
    submit(place, form, jobs, namespace)


# --- list ----------------------------------------------------------------------------------------


@job.command("list")
@cluster_options
@output_option()
@namespace_option()
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("-q", "--queue", default="", help="Only jobs of this queue.")
@click.option("-S", "--scheduler", default="", help="Only jobs of this scheduler.")
@click.option("--selector", default="", help="Only jobs whose names contain this text.")
@click.option(
    "-l", "--labels", default="", help="Only jobs with these labels, such as team=vision."
)
@click.option(
    "--position", "placed", is_flag=True, help="Add queue positions; reads the whole cluster."
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
    """Show all fields of a job, and its events."""
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
    *,
    overrides_budgets: bool,
) -> None:
    """Explain why a job waits: reason, position in its queue, and expected start.

    The exit code is 8 if the job waits, 9 if it can never start, and otherwise 0.
    """
    # The imports for the queue order (rules and engines) take a second.
    from optsched.cli.inspect.explain_job import explain_job

    explain_job(
        place,
        form,
        target,
        lifting_classes,
        device_schedulers,
        overrides_budgets=overrides_budgets,
    )


# --- suspend, resume, delete ---------------------------------------------------------------------


@job.command("suspend")
@cluster_options
@output_option()
@target_options(JOB)
def suspend(place: Place, form: str, target: Target) -> None:
    """Suspend a job: delete its pods until the job is resumed."""
    order(place, form, target, ABORT)


@job.command("resume")
@cluster_options
@output_option()
@target_options(JOB)
def resume(place: Place, form: str, target: Target) -> None:
    """Resume a suspended job."""
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
@output_option(help_text="Format of each change; name: print only the name, once the job finishes.")
@click.option("--timeout", type=Duration(), help="Stop after this time, such as 90s or 2h.")
@target_options(JOB)
def watch(place: Place, form: str, timeout: int | None, target: Target) -> None:
    """Show each change of a job until it finishes; the exit code states the outcome.

    0: the job has completed. 1: the job has failed, or was aborted or terminated. 3: the job was
    deleted. 7: the job did not finish before the timeout.
    """
    watch_job(place, form, target, timeout)
