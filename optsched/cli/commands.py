"""All commands with their arguments, options and exit codes, as the table of docs/commands.md.

`python -m optsched.cli.commands > docs/commands.md` writes the page again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from optsched.cli.benchmarks import BENCHMARKS
from optsched.cli.cluster import Exit
from optsched.cli.endings import BAD_INPUT, NO_PLAN, NOT_KEPT, STOPPED
from optsched.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TERMINATED: Final = 143
_SEARCH: Final = (0, BAD_INPUT, NO_PLAN, NOT_KEPT, STOPPED)
_ON_A_CLUSTER: Final = (0, *range(Exit.FAILED, Exit.UNREACHABLE + 1))
_LOCAL: Final = (0, Exit.FAILED.value, BAD_INPUT)

CODES: Final[Mapping[str, tuple[int, ...]]] = {
    "compare": (0, Exit.FAILED.value, BAD_INPUT, STOPPED),
    "completion": (0, BAD_INPUT),
    "controllers": _LOCAL,
    "demo": _LOCAL,
    "gpu-hours": (0, BAD_INPUT),
    "job": _ON_A_CLUSTER,
    "job explain": (*_ON_A_CLUSTER, Exit.WAITS.value, Exit.NEVER.value),
    "job watch": (*_ON_A_CLUSTER, Exit.TIMEOUT.value),
    "jobflow": _ON_A_CLUSTER,
    "jobtemplate": _ON_A_CLUSTER,
    "local": _LOCAL,
    "pod": _ON_A_CLUSTER,
    "queue": _ON_A_CLUSTER,
    "scheduler": _LOCAL,
    "simulate": (0, Exit.FAILED.value, BAD_INPUT, STOPPED),
    "snapshot": _LOCAL,
    "solve": (*_SEARCH, _TERMINATED),
    "solve FILE.vbp": _SEARCH,
    "solve model_*.txt": _SEARCH,
    "version": (0, BAD_INPUT),
    "webhook": _LOCAL,
    "what-if": (*_ON_A_CLUSTER, Exit.WAITS.value, Exit.NEVER.value),
}
"""Exit codes by command, or by group for all of its commands that have none of their own."""

MEANINGS: Final = (
    (0, "done"),
    (1, "failed: a replay or a file could not be made, or the cluster refused it"),
    (2, "wrong usage or bad input: an option, a value, a file with mistakes"),
    (3, "commands on files: there is no plan; on a cluster: there is no such object"),
    (4, "commands on files: a file could not be written; on a cluster: it exists or is needed"),
    (5, "not allowed"),
    (6, "the cluster can not be reached"),
    (7, "it has not ended in time"),
    (8, "it waits"),
    (9, "it could never start"),
    (130, "stopped by Ctrl-C, with the best so far"),
    (143, "stopped by `kill`, with the best so far"),
)
CHOICES: Final = "/"
_BENCHMARK_NAMES: Final = ("solve FILE.vbp", "solve model_*.txt")
_HEAD: Final = """# Which commands, options and exit codes are there?

Every command says more with `--help`. [The command line](cli.md) has examples for a cluster,
[solve](solve.md), [simulate](simulate.md) and [compare](compare.md) those for files.

| command | options | exit codes |
|---|---|---|
"""


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its name, those of groups with the name of the group before it."""
    yield from _commands(main, "")
    for name, benchmark in zip(_BENCHMARK_NAMES, BENCHMARKS, strict=True):
        yield name, benchmark.load()


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    ctx = click.Context(command)
    for each in command.list_commands(ctx):
        found = command.get_command(ctx, each)
        if found is not None:
            yield from _commands(found, f"{name} {each}".strip())


def codes_of(name: str) -> tuple[int, ...]:
    """Exit codes of a command, in order."""
    return tuple(sorted(CODES[name] if name in CODES else CODES[name.partition(" ")[0]]))


def commands_page() -> str:
    """The whole page."""
    rows = [
        f"| `{_usage(name, command)}` | {_options(command)} | {_numbers(codes_of(name))} |\n"
        for name, command in sorted(all_commands(), key=lambda pair: pair[0])
    ]
    meanings = [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS]
    head = "\n| exit code | meaning |\n|---|---|\n"
    return "".join([_HEAD, *rows, head, *meanings])


def _usage(name: str, command: click.Command) -> str:
    arguments = [
        f"{'' if p.required else '['}{(p.human_readable_name or '').upper()}"
        f"{'...' if p.nargs == -1 else ''}{'' if p.required else ']'}"
        for p in command.params
        if isinstance(p, click.Argument)
    ]
    if name in _BENCHMARK_NAMES:
        return name
    return " ".join([name, *arguments])


def _options(command: click.Command) -> str:
    found = [_option(p) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return ", ".join(found) or "–"


def _option(option: click.Option) -> str:
    names = " ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names = f"{names}/{' '.join(option.secondary_opts)}"
    if option.is_flag:
        return f"`{names}`"
    if isinstance(option.type, click.Choice):
        return f"`{names} {CHOICES.join(map(str, option.type.choices))}`"
    kind = (option.metavar or option.type.name).upper().replace(" ", "_")
    return f"`{names} {kind}`"


def _numbers(codes: tuple[int, ...]) -> str:
    return ", ".join(map(str, codes))


if __name__ == "__main__":
    click.echo(commands_page(), nl=False)
