"""The command `optsched`, which is also `vcctl` and a plugin of kubectl."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from optsched import __version__
from optsched.cli.endings import EndingCommand

COMMANDS: Final = {
    "compare": "optsched.cli.compare",
    "completion": "optsched.cli.version",
    "controllers": "optsched.cli.controllers",
    "demo": "optsched.cli.demo",
    "gpu-hours": "optsched.cli.gpu_hours",
    "job": "optsched.cli.job",
    "jobflow": "optsched.cli.flows",
    "jobtemplate": "optsched.cli.flows",
    "local": "optsched.cli.local",
    "pod": "optsched.cli.pod",
    "queue": "optsched.cli.queue",
    "scheduler": "optsched.cli.scheduler",
    "simulate": "optsched.cli.simulate",
    "snapshot": "optsched.cli.snapshot",
    "solve": "optsched.cli.solve",
    "version": "optsched.cli.version",
    "webhook": "optsched.cli.webhook",
    "what-if": "optsched.cli.what_if",
}
"""The module of each command, which has it under its own name, `_` for `-`."""


class Commands(EndingCommand, click.Group):
    """Loads a command when it is asked for: the solver takes a second, a queue does not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click; a name that is close to that of a command is in the message."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            ctx.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(
            import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_")
        )
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optsched")
def main() -> None:
    """A batch scheduler for Kubernetes that decides each session as one optimisation problem."""


if __name__ == "__main__":
    main()
