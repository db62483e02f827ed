"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from optsched.cli.base.output_formats import TABLE
from optsched.policy.policy import SolverKind
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Command = TypeVar("Command", bound="Callable[..., Any]")

MOST_SEED: Final = 2**31 - 1
SOLVER_HELP: Final = "Instead of the model's. none: the greedy pipeline alone."
SEED: Final = click.IntRange(min=0, max=MOST_SEED)


class Seconds(click.ParamType[float]):
    """A finite number of seconds, at least a minimum; a minimum of zero is accepted."""

    name = "seconds"

    def __init__(self, *, more_than_zero: bool = False) -> None:
        self._more_than_zero = more_than_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See `click.ParamType`."""
        try:
            found = float(str(value))
        except ValueError:
            found = math.nan
        wrong = found <= 0 if self._more_than_zero else found < 0
        if wrong or not math.isfinite(found):
            least = "above 0" if self._more_than_zero else "from 0 on"
            shown = printable(str(value))
            self.fail(f"{shown}: write a number of seconds {least}, such as 2.5", param, ctx)
        return found


def solver_option(command: Command) -> Command:
    """Add `--solver`."""
    kinds = [kind.value for kind in SolverKind]
    return click.option("--solver", type=click.Choice(kinds), help=SOLVER_HELP)(command)


def tenant_claim_options(command: Command) -> Command:
    """Add the options of the running scheduler that say which claims of tenants count."""
    command = click.option(
        "--device-scheduler",
        "device_schedulers",
        multiple=True,
        metavar="NAME",
        help="As the scheduler was started: annotations of this other scheduler's pods count.",
    )(command)
    return click.option(
        "--tenant-priority-class",
        "lifting_classes",
        multiple=True,
        metavar="NAME",
        help="As the scheduler was started: this PriorityClass lifts PodGroups above their pods.",
    )(command)


def form_option(forms: Sequence[str], default: str = TABLE) -> Callable[[Command], Command]:
    """Add `-o`, `--output`: the format of the standard output."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(forms),
        default=default,
        show_default=True,
        help="How to print.",
    )
