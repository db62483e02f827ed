"""The command `optsched`."""

from __future__ import annotations

import click

from optsched import __version__
from optsched.cli.controllers import controllers
from optsched.cli.demo import demo
from optsched.cli.local import local
from optsched.cli.scheduler import scheduler
from optsched.cli.snapshot import snapshot
from optsched.cli.solve import solve
from optsched.cli.webhook import webhook


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optsched")
def main() -> None:
    """A batch scheduler for Kubernetes that decides each session as one optimisation problem."""


main.add_command(controllers)
main.add_command(demo)
main.add_command(local)
main.add_command(scheduler)
main.add_command(snapshot)
main.add_command(solve)
main.add_command(webhook)

if __name__ == "__main__":
    main()
