"""`optsched version` and `optsched completion`."""

from __future__ import annotations

import platform

import click

from optsched import __version__
from optsched.api.kinds import JOB, QUEUE
from optsched.cli.base.command_errors import PlainCommand
from optsched.cli.base.console import echo
from optsched.cli.base.options import JSON, NAME, YAML, format_document, output_option

SHELLS = ("bash", "zsh", "fish")


@click.command()
@output_option(help_text="Output format; name: print only the version number.")
def version(form: str) -> None:
    """Print the version of optsched and the API versions that it reads."""
    if form == NAME:
        echo(__version__)
    elif form in (JSON, YAML):
        echo(format_document({words[0]: words[2] for words in _list_facts()}, form), nl=False)
    else:
        for _, title, value in _list_facts():
            echo(f"{title + ':':17}{value}")


def _list_facts() -> list[tuple[str, str, str]]:
    apis = f"{JOB.api_version}, {QUEUE.api_version}"
    system = f"{platform.system().lower()}/{platform.machine()}"
    return [
        ("version", "Version", __version__),
        ("apiVersions", "API Versions", apis),
        ("pythonVersion", "Python Version", platform.python_version()),
        ("platform", "OS/Arch", system),
    ]


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    bash: source <(optsched completion bash). zsh: source <(optsched completion zsh), after
    compinit. fish: optsched completion fish | source.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    program = (root.info_name or "optsched").replace(" ", "-")
    made = get_completion_class(shell)
    assert made is not None, "click supports all SHELLS"  # noqa: S101
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    echo(made(root.command, {}, program, variable).source())


@click.command(
    cls=PlainCommand, context_settings={"ignore_unknown_options": True}, add_help_option=False
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl_complete(words: tuple[str, ...]) -> None:
    """Complete `kubectl vc`; kubectl passes the words that the user has typed so far.

    The command prints one completion per line, then `:4`, which instructs cobra not to complete
    file names.
    """
    from click.shell_completion import ShellComplete

    from optsched.cli.main import main

    *before, prefix = words or ("",)
    complete = ShellComplete(main, {}, "kubectl-vc", "_KUBECTL_VC_COMPLETE")
    for item in complete.get_completions(before, prefix):
        echo(item.value)
    echo(":4")
