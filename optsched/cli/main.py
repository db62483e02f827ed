"""The command `optsched`, which can also be installed as `vcctl` and as a kubectl plugin."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

import click

from optsched import __version__
from optsched.cli.base.command_errors import ExitCodeCommand, Group


class LazyCommand(NamedTuple):
    """The module and help summary of a command, which are known before its module is imported."""

    module: str
    summary: str


COMMANDS: Final = {
    "compare": LazyCommand("optsched.cli.offline.compare_command", "Compare models on TRACES."),
    "completion": LazyCommand("optsched.cli.version", "Print a shell completion script."),
    "controllers": LazyCommand(
        "optsched.cli.services.controllers", "Run the controllers of queues, jobs and PodGroups."
    ),
    "demo": LazyCommand(
        "optsched.cli.demo_command",
        "Run the gang experiment: 1, 2 and 5 jobs of 6 tasks on 4 nodes with 4 CPUs.",
    ),
    "gpu-hours": LazyCommand(
        "optsched.cli.offline.gpu_hours_command",
        "Report the GPU hours of FOLDER by queue and user.",
    ),
    "job": LazyCommand(
        "optsched.cli.live.job_commands",
        "Run, list, view, watch, suspend, resume and delete batch jobs.",
    ),
    "jobflow": LazyCommand(
        "optsched.cli.live.jobflow_commands", "Manage JobFlows: graphs of dependent jobs."
    ),
    "jobtemplate": LazyCommand(
        "optsched.cli.live.jobflow_commands",
        "Manage JobTemplates, from which JobFlows create jobs.",
    ),
    "local": LazyCommand(
        "optsched.cli.local_command",
        "Run a Kubernetes control plane on this machine, with emulated nodes.",
    ),
    "pod": LazyCommand("optsched.cli.live.pod_commands", "List the pods of jobs and queues."),
    "queue": LazyCommand(
        "optsched.cli.live.queue_commands",
        "List, show, create, open, close, change and delete queues.",
    ),
    "scheduler": LazyCommand(
        "optsched.cli.services.scheduler",
        "Run the scheduler for the pods that name it, next to kube-scheduler.",
    ),
    "simulate": LazyCommand(
        "optsched.cli.offline.simulate_command",
        "Replay TRACE in virtual time with the sessions of the live scheduler.",
    ),
    "snapshot": LazyCommand(
        "optsched.cli.live.snapshot_command", "Write the cluster objects that a scheduler reads."
    ),
    "solve": LazyCommand(
        "optsched.cli.offline.solve_command",
        "Solve the cluster in INSTANCE: manifests, a folder of manifests, or openb CSV files.",
    ),
    "version": LazyCommand(
        "optsched.cli.version", "Print the version of optsched and the API versions that it reads."
    ),
    "webhook": LazyCommand(
        "optsched.cli.services.webhook",
        "Run the admission webhook, which reviews objects before they are stored.",
    ),
    "what-if": LazyCommand(
        "optsched.cli.live.what_if_command",
        "Predict whether a job would start now, where, and which pods it would evict.",
    ),
}
"""Commands, keyed by name.

The Python function of a command has the command's name, with `_` instead of `-`.
"""


class Commands(ExitCodeCommand, Group):
    """A command group that imports the module of a command only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command, and return the command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(COMMANDS[cmd_name].module)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and summaries of all commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optsched")
def main() -> None:
    """A batch scheduler for Kubernetes that decides each session as one optimisation problem."""


if __name__ == "__main__":
    main()
