"""Generate docs/commands.md, the reference of all commands, options and exit codes.

`python -m optsched.cli.commands > docs/commands.md` regenerates the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from optsched.cli import legacy
from optsched.cli.base.command_errors import BAD_INPUT, NO_PLAN, NOT_WRITTEN, STOPPED
from optsched.cli.base.connection import Exit
from optsched.cli.base.console import echo
from optsched.cli.base.options import current_names
from optsched.cli.main import main
from optsched.cli.offline.benchmark_instances import BENCHMARKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TERMINATED: Final = 143
_FLOWS: Final = ("jobflow", "jobtemplate")
_SEARCH: Final = (0, BAD_INPUT, NO_PLAN, NOT_WRITTEN, STOPPED)
_READS: Final = (
    *(0, Exit.FAILED.value, Exit.USAGE.value, Exit.NOT_FOUND.value),
    *(Exit.DENIED.value, Exit.UNREACHABLE.value),
)
_WRITES: Final = (*_READS, Exit.CONFLICT.value)
_ANSWERS: Final = (Exit.WAITS.value, Exit.NEVER.value)
_LOCAL: Final = (0, Exit.FAILED.value, BAD_INPUT)

CODES: Final[Mapping[str, tuple[int, ...]]] = {
    "compare": (0, Exit.FAILED.value, BAD_INPUT, STOPPED),
    "completion": (0, BAD_INPUT),
    "controllers": _LOCAL,
    "demo": _LOCAL,
    "gpu-hours": (0, BAD_INPUT),
    "job delete": _WRITES,
    "job explain": (*_READS, *_ANSWERS),
    "job list": _READS,
    "job resume": _WRITES,
    "job run": _WRITES,
    "job suspend": _WRITES,
    "job view": _READS,
    "job watch": (*_READS, Exit.TIMEOUT.value),
    **{f"{kind} {verb}": _WRITES for kind in _FLOWS for verb in ("create", "delete")},
    **{f"{kind} {verb}": _READS for kind in _FLOWS for verb in ("describe", "get", "list")},
    "local down": _LOCAL,
    "local kubeconfig": _LOCAL,
    "local status": _LOCAL,
    "local up": _LOCAL,
    "pod list": _WRITES,
    "queue create": _WRITES,
    "queue delete": _WRITES,
    "queue get": _READS,
    "queue list": _READS,
    "queue operate": _WRITES,
    "scheduler": _LOCAL,
    "simulate": (0, Exit.FAILED.value, BAD_INPUT, STOPPED),
    "snapshot": _READS,
    "solve": (*_SEARCH, _TERMINATED),
    "solve FILE.vbp": _SEARCH,
    "solve model_*.txt": _SEARCH,
    "vcancel": _WRITES,
    "version": (0, BAD_INPUT),
    "vjobs": _READS,
    "vqueues": _READS,
    "vresume": _WRITES,
    "vsub": _WRITES,
    "vsuspend": _WRITES,
    "webhook": _LOCAL,
    "what-if": (*_WRITES, *_ANSWERS),
}
"""Exit codes of each command, in addition to the codes in `ALWAYS`."""

SHORT_FORMS: Final[Mapping[str, str]] = {
    "-A": "--all-namespaces",
    "-L": "--limits",
    "-N": "--name",
    "-R": "--requests",
    "-S": "--scheduler",
    "-a": "--action",
    "-c": "--command",
    "-f": "--filename",
    "-h": "--help",
    "-i": "--image",
    "-j": "--job",
    "-k": "--kubeconfig",
    "-l": "--labels",
    "-m": "--min",
    "-n": "--namespace",
    "-o": "--output",
    "-q": "--queue",
    "-r": "--replicas",
    "-s": "--master",
    "-v": "--v",
    "-w": "--weight",
}
"""The long form of each short option; `VOLCANO_FORMS` lists the exceptions."""

_TARGETS: Final = (
    *(f"job {verb}" for verb in ("delete", "explain", "resume", "suspend", "view", "watch")),
    *(f"{kind} {verb}" for kind in _FLOWS for verb in ("delete", "get")),
)
_QUEUES: Final = ("queue create", "queue delete", "queue get", "queue operate", "vqueues")
_OLD: Final = ("vcancel", "vjobs", "vresume", "vsub", "vsuspend")

VOLCANO_FORMS: Final[Mapping[tuple[str, tuple[str, ...]], str]] = {
    ("-n", _TARGETS): "the namespace, or the name if NAME and `-N` are missing (Volcano's guides)",
    ("-n", _QUEUES): "the name, as in `vcctl`: a queue has no namespace",
    ("-n", _OLD): "the name, as in Volcano's old commands",
    ("-N", _OLD): "the namespace, as in Volcano's old commands",
    ("-S", ("queue create",)): "`--state`, as in `vcctl`",
}
"""Meanings of short options in Volcano-compatible commands, keyed by (option, commands)."""

ALWAYS: Final = (
    (1, "the standard output cannot be written, for example because the disk is full"),
    (130, "stopped by Ctrl-C"),
)
"""Exit codes that any command may return, each with its meaning."""

MEANINGS: Final = (
    (0, "done"),
    (
        1,
        "failed: a replay failed, a file could not be written, or the cluster rejected a request; "
        "for a service: no cluster is configured, or the address to listen on is in use",
    ),
    (2, "wrong usage or bad input: an option, a value or a file is invalid"),
    (3, "commands on files: no plan was found; on a cluster: an object does not exist"),
    (
        4,
        "commands on files: a file could not be written; on a cluster: an object already exists, "
        "is still in use, or has finished",
    ),
    (5, "the user lacks a permission"),
    (6, "the cluster cannot be reached: no response, or an invalid kubeconfig"),
    (7, "`job watch`: the job did not finish before the timeout"),
    (8, "the job waits"),
    (9, "the job can never start"),
    (130, "stopped by Ctrl-C; a search returns its incumbent"),
    (143, "stopped by `kill`; a search returns its incumbent"),
)
CHOICES: Final = "/"
_BENCHMARK_NAMES: Final = ("solve FILE.vbp", "solve model_*.txt")
_HEAD: Final = """# Commands, options and exit codes

`--help` after a command explains its options. [The command line](cli.md) has examples for a
cluster; [solve](solve.md), [simulate](simulate.md) and [compare](compare.md) have examples for
files.

| command | options | exit codes |
|---|---|---|
"""

_FORMS_HEAD: Final = """
A short option means the same in every command. The exceptions exist for scripts that use Volcano:

| short | long | exceptions |
|---|---|---|
"""


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield (full name, command) for each command; a full name is, for example, `job list`.

    Volcano's old commands, which are separate programs, come last.
    """
    yield from _commands(main, "")
    for name, benchmark in zip(_BENCHMARK_NAMES, BENCHMARKS, strict=True):
        yield name, benchmark.load()
    for command in legacy.COMMANDS:
        yield command.name or "", command


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
    """Return the exit codes of a command, sorted, without the codes in `ALWAYS`."""
    return tuple(sorted(CODES[name]))


def commands_page() -> str:
    """Return the text of docs/commands.md."""
    rows = []
    for name, command in sorted(all_commands(), key=lambda pair: pair[0]):
        arguments = [
            f"{'' if p.required else '['}{(p.human_readable_name or '').upper()}"
            f"{'...' if p.nargs == -1 else ''}{'' if p.required else ']'}"
            for p in command.params
            if isinstance(p, click.Argument) and name not in _BENCHMARK_NAMES
        ]
        shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        options = ", ".join(map(_describe_option, shown)) or "–"
        codes = ", ".join(map(str, codes_of(name)))
        rows.append(f"| `{' '.join([name, *arguments])}` | {options} | {codes} |\n")
    meanings = [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS]
    head = "\n| exit code | meaning |\n|---|---|\n"
    always = " and ".join(f"{code} ({when})" for code, when in ALWAYS)
    every = f"\nEvery command may also end with the exit codes {always}.\n"
    forms = []
    for short, long in sorted(SHORT_FORMS.items(), key=lambda pair: pair[0].lower()):
        others = [
            f"{meaning}: {', '.join(f'`{name}`' for name in names)}"
            for (form, names), meaning in VOLCANO_FORMS.items()
            if form == short
        ]
        forms.append(f"| `{short}` | `{long}` | {'; '.join(others) or '–'} |\n")
    return "".join([_HEAD, *rows, head, *meanings, every, _FORMS_HEAD, *forms])


def _describe_option(option: click.Option) -> str:
    names = " ".join(sorted(current_names(option), key=len))
    if option.secondary_opts:
        names = f"{names}/{' '.join(current_names(option, secondary=True))}"
    if option.is_flag:
        return f"`{names}`"
    if isinstance(option.type, click.Choice):
        return f"`{names} {CHOICES.join(map(str, option.type.choices))}`"
    kind = (option.metavar or option.type.name).upper().replace(" ", "_")
    return f"`{names} {kind}`"


if __name__ == "__main__":
    echo(commands_page(), nl=False)
