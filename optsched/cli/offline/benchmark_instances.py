"""Benchmark formats that `optsched solve` accepts in addition to clusters.

If an argument is a file in a benchmark format, `optsched solve` passes all arguments to the command
for that format. This module also defines the options that all benchmark commands share.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched.cli.base.command_errors import WrongUsage
from optsched.cli.base.options import (
    JSON,
    SECONDS,
    SEED,
    TABLE,
    YAML,
    add_options,
    current_names,
    form_option,
)
from optsched.cli.base.path_arguments import OutputPath, WriteError, check_writable, is_standard
from optsched.study.packing.vbp import is_vbp
from optsched.study.reassignment.roadef import is_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.cli.base.options import Command


STOPPED_BY_HAND: Final = "stopped by hand"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark format and its command.

    Attributes
    ----------
    takes
        Function that returns whether a path is a file in this format.
    module, command
        The module that contains the command for the format, and the command's name there.
    """

    takes: Callable[[str], bool]
    module: str
    command: str

    def load(self) -> click.Command:
        """Import and return the command for the benchmark format."""
        found: click.Command = getattr(import_module(self.module), self.command)
        return found


BENCHMARKS: Final = (
    Benchmark(is_vbp, "optsched.cli.offline.packing_command", "pack"),
    Benchmark(is_model, "optsched.cli.offline.reassignment_command", "reassign"),
)


class OrBenchmark(click.Command):
    """A command that runs a benchmark format's command if an argument is a file in that format."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401  click's
    ) -> click.Context:
        """Return the context of this command, or of the command for a benchmark format."""
        for benchmark in BENCHMARKS:
            command = benchmark.load() if any(map(benchmark.takes, args)) else self
            found = [a for a in _list_arguments((self, command), args) if benchmark.takes(a)]
            if not found:
                continue
            try:
                return command.make_context(info_name, args, parent, **extra)
            except click.NoSuchOption as e:
                if e.option_name not in _long_names(self.params):
                    raise
                taken = ", ".join(sorted(_long_names(command.params)))
                message = f"{e.option_name} is only for clusters: {found[0]} takes {taken}"
                raise WrongUsage(message) from e
        return super().make_context(info_name, args, parent, **extra)


def _long_names(params: Sequence[click.Parameter]) -> set[str]:
    """Return the long names of options, such as `--out`."""
    options = (param for param in params if isinstance(param, click.Option))
    return {name for option in options for name in current_names(option) if name.startswith("--")}


def _list_arguments(commands: Iterable[click.Command], args: Sequence[str]) -> list[str]:
    """Return the arguments that are neither options nor values of any command's options."""
    valued = {
        name
        for command in commands
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag
        for name in option.opts
    }
    before = ["", *args]
    return [
        a for a, b in zip(args, before, strict=False) if not a.startswith("-") and b not in valued
    ]


def search_options(seconds: float, limit: str, out: str) -> Callable[[Command], Command]:
    """Add `--time-limit`, `--seed`, `--out` and `-o` to a command.

    `seconds` is the default time limit. `limit` and `out` are the help texts of `--time-limit` and
    `--out`.
    """
    return add_options(
        click.option("--time-limit", type=SECONDS, default=seconds, show_default=True, help=limit),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed."),
        click.option("--out", type=OutputPath(path_type=Path), callback=_writable, help=out),
        form_option((TABLE, JSON, YAML)),
    )


def _writable(ctx: click.Context, param: click.Parameter, out: Path | None) -> Path | None:
    """Return the path of an output file; raise click.BadParameter if it cannot be written."""
    if out is not None:
        try:
            check_writable(out)
        except WriteError as e:
            raise click.BadParameter(str(e), ctx, param) from e
    return out


def check_standard_output(out: Path | None, form: str) -> None:
    """Reject `--out -` with an output format, because both write to stdout."""
    if is_standard(out) and form != TABLE:
        raise click.UsageError("-o and --out - both write to the standard output")


def form_of(path: Path) -> str | None:
    """Return the output format for a file extension, or None if the extension is unknown."""
    return {".json": JSON, ".yaml": YAML, ".yml": YAML}.get(path.suffix)
