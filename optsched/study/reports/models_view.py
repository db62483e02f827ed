"""Models in reports: the definition of one in words, and the differences of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.policy.policy import Admission, SolverKind
from optsched.study.comparison.model_definitions import flat
from optsched.study.reports.number_text import UNKNOWN
from optsched.study.reports.page import Cell, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def definition_table(model: Mapping[str, Any]) -> Table:
    """All that a model says, in words."""
    rows = [(Cell("actions"), Cell(", ".join(model["actions"])), Cell(""))]
    for number, tier in enumerate(model["tiers"], 1):
        for i, plugin in enumerate(tier):
            head = f"tier {number}" if not i else ""
            words = [plugin["meaning"]]
            words += [f"{name} = {value}" for name, value in plugin["arguments"].items()]
            words += [f"{name} switched" for name in plugin["switched"]]
            rows.append((Cell(head), Cell(plugin["name"]), Cell("; ".join(words))))
    for i, level in enumerate(model["levels"]):
        head = "levels" if not i else ""
        rows.append((Cell(head), Cell(f"{i + 1}. {level['name']}"), Cell(level["meaning"])))
    rows += [(Cell(name), Cell(value), Cell("")) for name, value in _settings(model)]
    caption = f"{model['name']}: {model['meaning']}" if model["meaning"] else model["name"]
    return Table(caption, ("part", "is", "meaning"), rows, is_sortable=False)


def _settings(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    budgets = model["budgets"]
    by_weight = model["admission"] == Admission.BY_WEIGHT.value
    solved = f"CP-SAT, up to {budgets['solve']} a session"
    return [
        ("admission", "gangs weighted by priority" if by_weight else "priority by priority"),
        ("solver", "none" if model["solver"] == SolverKind.NONE.value else solved),
        ("period", budgets["period"]),
        ("starvation", f"after {budgets['starvationAfter']}"),
        ("reservations", str(model["reservations"])),
    ]


def difference_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Keys in which models differ; the others are compared with the first."""
    told = [flat(model) for model in models]
    keys = list(dict.fromkeys(key for each in told for key in each))
    rows = []
    for key in keys:
        values = [each.get(key, UNKNOWN) for each in told]
        if len(set(values)) == 1:
            continue
        cells = [Cell(v, css="" if v == values[0] else "changed") for v in values]
        rows.append((Cell(key), *cells))
    names = [model["name"] for model in models]
    caption = "What differs" if rows else "Nothing differs"
    return Table(caption, ("key", *names), rows, is_sortable=False)


def model_section(models: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> Section:
    """Definitions of models, and their differences; a single one is compared with a base."""
    alone = len(models) == 1 and models[0] != base
    held = [base, *models] if alone else models
    parts = [difference_table(held)] if len(held) > 1 else []
    heading = "Models" if len(models) > 1 else "Model"
    return Section("model", heading, [*parts, *map(definition_table, models)])
