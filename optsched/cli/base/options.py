"""Options shared by several commands, the types of their values, and output formats.

JSON and YAML output is one object, or a `v1` List of objects. Objects are printed as the server
stores them, with sorted keys and without `managedFields`. The format `name` prints the same lines
as `kubectl get -o name`.
"""

from __future__ import annotations

import math
import re
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.text import Text

from optsched.admission.names import QUALIFIED_RULE, SUBDOMAIN_RULE, is_qualified, is_subdomain
from optsched.cli.base.console import echo, print_text, stderr, stdout
from optsched.cli.base.table_columns import TABLES, Column, Table, name_of, namespace_of
from optsched.formats.files.yaml_text import write_yaml
from optsched.kube.client.kubeconfig import is_http_address
from optsched.policy.policy import SolverKind
from optsched.units import parse_duration_ms
from optsched.units.plaintext import printable, write_json
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from optsched.api.kinds import Kind

    Raw = Mapping[str, Any]


Command = TypeVar("Command", bound="Callable[..., Any]")
T = TypeVar("T")

_WHOLE: Final = re.compile(r"\s*[-+]?[0-9]{1,4000}\s*")
"""Matches integers of up to 4 000 digits; `int` raises ValueError above 4 300 digits."""


class WholeNumber(click.IntRange):
    """An integer in ASCII digits.

    Python's `int` also accepts `1_0` and non-ASCII digits, which are usually typing errors.
    """

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the number; fail if the text is not an integer or out of range."""
        if not isinstance(value, int) and _WHOLE.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)  # click's message
        return super().convert(int(str(value)), param, ctx)


class ParsedText(click.ParamType[T]):
    """An option type whose text a function parses; a ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ANN401  click's
        """Parse a text; a default value that is not a string is returned unchanged."""
        if not isinstance(value, str):
            default: T = value
            return default
        try:
            return self._parse(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


def _parse_server_address(text: str) -> str:
    if text and not is_http_address(text):
        raise ValueError(f"{text!r} is not an API server address: write https://HOST:PORT")
    return text


def _parse_webhook_address(text: str) -> str:
    is_https = text.startswith("https://") and not set("?#@") & set(text)
    if text and not (is_https and is_http_address(text)):
        raise ValueError(f"{text!r} is not a webhook address: write https://HOST:PORT")
    return text


SERVER_ADDRESS: Final = ParsedText("address", _parse_server_address)
"""Option type for the address of an API server, `https://HOST:PORT` with an optional path."""

WEBHOOK_ADDRESS: Final = ParsedText("address", _parse_webhook_address)
"""Option type for the address of a webhook, `https://HOST:PORT` with an optional path.

API servers reject webhook configurations whose address has another form.
"""

MOST_CHARACTERS: Final = 253
"""Maximum number of characters in the name of a Kubernetes object."""


def _name_type(rule: str, is_valid: Callable[[str], bool]) -> ParsedText[str]:
    """Return an option type for names that `is_valid` accepts; `rule` describes valid names."""

    def parse(text: str) -> str:
        if not text:
            raise ValueError("the name is empty: write one, or omit the option")
        if len(text) > MOST_CHARACTERS:
            excess = f"the name has {len(text)} characters, at most {MOST_CHARACTERS} are allowed"
            raise ValueError(excess)
        if not is_valid(text):
            raise ValueError(f"{text!r} is not a valid name: {rule}")
        return text

    return ParsedText("text", parse)


USER_NAME: Final = _name_type("write it without control characters", str.isprintable)
"""Option type for user names, which Kubernetes does not restrict."""

SCHEDULER_NAME: Final = _name_type(
    "write it without spaces", lambda text: text.isprintable() and " " not in text
)
"""Option type for the `schedulerName` of a pod, which Kubernetes does not restrict."""

OBJECT_NAME: Final = _name_type(SUBDOMAIN_RULE, is_subdomain)
"""Option type for object names that API servers accept."""

ANNOTATION_KEY: Final = _name_type(QUALIFIED_RULE, is_qualified)


class RenamedOption(click.Option):
    """An option with former names, which are accepted but not shown in the help.

    Parameters
    ----------
    former
        Former names of the option.
    """

    def __init__(self, *arguments: Any, former: Sequence[str], **options: Any) -> None:  # noqa: ANN401  click's
        super().__init__(*arguments, **options)
        self.former = frozenset(former)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """See `click.Option`."""
        return " / ".join(f"'{name}'" for name in current_names(self))

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option`."""
        opts, secondary = self.opts, self.secondary_opts
        self.opts, self.secondary_opts = current_names(self), current_names(self, secondary=True)
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts, self.secondary_opts = opts, secondary


def current_names(option: click.Option, *, secondary: bool = False) -> list[str]:
    """Return the names of an option without its former names.

    `secondary` selects the names that turn a flag off.
    """
    former = option.former if isinstance(option, RenamedOption) else frozenset[str]()
    return [n for n in (option.secondary_opts if secondary else option.opts) if n not in former]


TABLE: Final = "table"
WIDE: Final = "wide"
JSON: Final = "json"
YAML: Final = "yaml"
NAME: Final = "name"
FORMATS: Final = (TABLE, WIDE, JSON, YAML, NAME)
GAP: Final = 3
"""Number of spaces between two table columns."""

_STYLES: Final = {
    **dict.fromkeys(("Running", "Completed", "Succeeded", "Succeed", "Open"), "green"),
    **dict.fromkeys(("Pending", "Restarting", "Closing", "Inqueue", "Aborting"), "yellow"),
    **dict.fromkeys(("Terminating", "Completing", "Aborted", "Closed", "Unknown"), "yellow"),
    **dict.fromkeys(("Failed", "Terminated"), "red"),
}
_STATES: Final = frozenset({"Phase", "State", "Status"})


def output_option(
    default: str = TABLE, help_text: str = "Output format."
) -> Callable[[Command], Command]:
    """Add `-o` and `--output` to a command; Volcano's `--format` is a hidden alias."""
    return click.option(
        "-o",
        "--output",
        "--format",
        "form",
        cls=RenamedOption,
        former=("--format",),
        type=click.Choice(FORMATS),
        default=default,
        show_default=True,
        help=help_text,
    )


def show_list(kind: Kind, objects: Sequence[Raw], form: str, table: Table | None = None) -> None:
    """Print a list of objects; if a table has no rows, print a message to stderr."""
    stored = [as_stored(kind, obj) for obj in objects]
    if form in (JSON, YAML):
        whole = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": stored}
        echo(format_document(whole, form), nl=False)
    elif form == NAME:
        for obj in stored:
            echo(typed_name(kind, obj))
    elif not stored:
        print_text(stderr(), "No resources found", "dim")
    else:
        show_table(table or TABLES[kind], stored, wide=form == WIDE)


def print_object(kind: Kind, obj: Raw, form: str, table: Table | None = None) -> None:
    """Print an object in the output format `form`."""
    if form in (TABLE, WIDE):
        show_table(table or TABLES[kind], [obj], wide=form == WIDE)
    else:
        show_stored(kind, obj, form)


def print_change(kind: Kind, obj: Raw, form: str, sentence: str) -> None:
    """Print `sentence` if the format is a table; otherwise print the changed object as stored."""
    if form in (TABLE, WIDE):
        echo(sentence)
    else:
        show_stored(kind, obj, form)


def show_stored(kind: Kind, obj: Raw, form: str) -> None:
    """Print an object in a machine-readable format: json, yaml or name."""
    stored = as_stored(kind, obj)
    is_name = form == NAME
    echo(typed_name(kind, stored) if is_name else format_document(stored, form), nl=is_name)


def as_stored(kind: Kind, obj: Raw) -> dict[str, Any]:
    """Return an object without managedFields and with apiVersion and kind."""
    meta = {k: v for k, v in (obj.get("metadata") or {}).items() if k != "managedFields"}
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}


def typed_name(kind: Kind, obj: Raw) -> str:
    """Return an object's resource type and name, such as `job.batch.volcano.sh/train`."""
    suffix = f".{kind.group}" if kind.group else ""
    return f"{kind.singular}{suffix}/{name_of(obj)}"


def format_document(value: object, form: str) -> str:
    """Format JSON data as JSON or YAML text with a final newline."""
    if form == JSON:
        return write_json(value, indent=2, sort_keys=True) + "\n"
    return write_yaml(value)


# --- tables --------------------------------------------------------------------------------------


def with_namespace(table: Table) -> Table:
    """Return a table with an additional first column: the namespace of each object."""
    column = Column("Namespace", lambda pair, _: pair[0])
    rest = tuple(Column(c.heading, _second(c.cell), c.wide) for c in table.columns)
    return Table(lambda obj: (namespace_of(obj), table.read(obj)), (column, *rest))


def with_queues(table: Table, queue_of: Callable[[Raw], str]) -> Table:
    """Return a table whose queue column shows what `queue_of` returns for each object."""
    queue = Column("Queue", lambda pair, _: queue_of(pair[0]), wide=True)
    columns = (
        queue if c.heading == queue.heading else Column(c.heading, _second(c.cell), c.wide)
        for c in table.columns
    )
    return Table(lambda obj: (obj, table.read(obj)), tuple(columns))


def _second(cell: Callable[[Any, int], object]) -> Callable[[Any, int], object]:
    return lambda pair, now_ms: cell(pair[1], now_ms)


def show_table(table: Table, objects: Sequence[Raw], *, wide: bool) -> None:
    """Print a table of objects without wrapping lines."""
    from optsched.kube.runtime.timing import SystemClock

    now_ms = SystemClock().now_ms()
    headings = table.headings(wide=wide)
    show_rows(headings, [table.row(obj, now_ms, wide=wide) for obj in objects])


def show_rows(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print table rows with aligned columns; states are coloured on a terminal.

    If `console` is None, the table is printed to stdout.
    """
    console = console or stdout()
    for line in format_lines(headings, rows):
        console.print(line, soft_wrap=True, highlight=False)


def format_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
    """Format headings and rows as lines; each column is as wide as its widest cell."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) + GAP for column in columns]
    lines = []
    for cells in (headings, *rows):
        line = Text()
        for cell, heading, width in zip(cells, headings, widths, strict=True):
            style = _STYLES.get(cell, "") if heading in _STATES and cells is not headings else ""
            line.append(cell, style).append(" " * (width - len(cell)))
        line.rstrip()
        lines.append(line)
    return lines


MOST_SEED: Final = 2**31 - 1
SOLVER_HELP: Final = "Solver to use instead of the model's; none: run only the greedy pipeline."
MOST_INT32: Final = 2**31 - 1
"""The largest 32-bit integer, the maximum of many integer fields of Kubernetes objects."""

SEED: Final = WholeNumber(min=0, max=MOST_SEED)


MOST_SECONDS: Final = 10**9
"""Upper limit for durations in options, in seconds; Python's timers overflow at larger values."""


def _parse_duration(text: str) -> int:
    milliseconds = parse_duration_ms(text)
    if milliseconds <= 0:
        raise ValueError(f"{text}: must be longer than zero")
    return milliseconds


DURATION: Final = ParsedText("duration", _parse_duration)
"""Option type for a positive duration such as 500ms (Go's notation), converted to ms."""


def _parse_seconds(text: str, *, more_than_zero: bool) -> float:
    number = parse_decimal(text)
    found = math.nan if number is None else float(number)
    wrong = found <= 0 if more_than_zero else found < 0
    if wrong or not math.isfinite(found):
        least = "above 0" if more_than_zero else "from 0 on"
        raise ValueError(f"{printable(text)}: write a number of seconds {least}, such as 2.5")
    if found > MOST_SECONDS:
        raise ValueError(f"{printable(text)}: write at most {MOST_SECONDS} seconds")
    return found


SECONDS: Final = ParsedText("seconds", partial(_parse_seconds, more_than_zero=False))
"""Option type for a number of seconds from 0 to `MOST_SECONDS`."""

POSITIVE_SECONDS: Final = ParsedText("seconds", partial(_parse_seconds, more_than_zero=True))


def add_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in the order of the help text."""
    return lambda command: reduce(lambda found, option: option(found), reversed(options), command)


solver_option: Final = click.option(
    "--solver", type=click.Choice([kind.value for kind in SolverKind]), help=SOLVER_HELP
)

tenant_claim_options: Final = add_options(
    click.option(
        "--tenant-priority-class",
        "lifting_classes",
        multiple=True,
        metavar="NAME",
        help="Same value as the running scheduler's --tenant-priority-class; may be repeated.",
    ),
    click.option(
        "--device-scheduler",
        "device_schedulers",
        multiple=True,
        metavar="NAME",
        help="Same value as the running scheduler's --device-scheduler; may be repeated.",
    ),
    click.option(
        "--guarantees-override-budgets",
        "overrides_budgets",
        is_flag=True,
        help="Set if the running scheduler has this flag: guarantees override disruption budgets.",
    ),
)
"""Adds the flags of `optsched scheduler` that a prediction for a live cluster also needs."""


def form_option(forms: Sequence[str], default: str = TABLE) -> Callable[[Command], Command]:
    """Add `-o` and `--output` to a command, with the formats in `forms`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(forms),
        default=default,
        show_default=True,
        help="Output format.",
    )
