"""Generate the tables of docs/configuration.md and the index of models/formulation.

`python -m optsched.cli.plugin_reference` rewrites the tables and the index. The tables of plugins,
levels, actions and arguments come from their declarations in code. Each page in models/formulation
ends with a line that begins with `**Index.**`; this line becomes the page's row in the index.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.registry import PLUGINS
from optsched.policy import shipped_models
from optsched.policy.catalogue import ACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.plugins.declaration import Argument


class _Declared(Protocol):
    """The declaration of a plugin, level or action: its name, and its meaning in one sentence."""

    @property
    def name(self) -> str: ...

    @property
    def meaning(self) -> str: ...


INDEX: Final = "**Index.** "
_DEFAULTS: Final = {"True": "true", "False": "false", "": "none"}


def format_configuration(text: str) -> str:
    """Replace the tables in docs/configuration.md with tables generated from declarations."""
    arguments = [(plugin.name, plugin.arguments) for plugin in PLUGINS.values()]
    arguments += [(action.name, action.arguments) for action in ACTIONS.values()]
    tables = {
        "| shipped model | what it is for |": _meanings(shipped_models()),
        "| action | what it does |": _meanings(ACTIONS.values()),
        "| level | what it counts |": _meanings(LEVELS.values()),
        "| plugin | what it does |": _meanings(PLUGINS.values()),
        "| plugin or action | argument | default | meaning |": [
            row for owner, given in arguments for row in _argument_rows(owner, given)
        ],
    }
    for header, rows in tables.items():
        text = replace_table(text, header, rows)
    return text


def format_index(text: str, pages: Iterable[Path]) -> str:
    """Replace the index in models/formulation/README.md, which has one row per page."""
    rows = []
    for page in sorted(pages):
        last = page.read_text("utf-8").rstrip().splitlines()[-1]
        if not last.startswith(INDEX):
            raise ValueError(f"{page} ends without a line `{INDEX}plugin | rows | order | level`")
        rows.append(f"| [{page.stem}]({page.name}) | {last.removeprefix(INDEX)} |")
    return replace_table(text, "| rule | plugin | hard rows | order | score or level |", rows)


def replace_table(text: str, header: str, rows: Sequence[str]) -> str:
    """Replace the table rows below the table header `header` with `rows`."""
    lines = text.split("\n")
    first = lines.index(header) + 2
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    return "\n".join([*lines[:first], *rows, *lines[end:]])


def _meanings(declared: Iterable[_Declared]) -> list[str]:
    return [f"| `{each.name}` | {each.meaning} |" for each in declared]


def _argument_rows(owner: str, arguments: Iterable[Argument], prefix: str = "") -> Iterator[str]:
    """Yield one table row per argument; arguments within a mapping have dotted names."""
    for argument in arguments:
        name = f"{prefix}{argument.name}"
        default = _DEFAULTS.get(str(argument.default), str(argument.default))
        yield f"| `{owner}` | `{name}` | {default} | {argument.meaning} |"
        yield from _argument_rows(owner, argument.fields, f"{name}.")


if __name__ == "__main__":
    configuration = Path("docs/configuration.md")
    configuration.write_text(format_configuration(configuration.read_text("utf-8")), "utf-8")
    index = Path("models/formulation/README.md")
    pages = [page for page in index.parent.glob("*.md") if page != index]
    index.write_text(format_index(index.read_text("utf-8"), pages), "utf-8")
