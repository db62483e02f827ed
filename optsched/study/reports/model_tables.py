"""Tables for reports: model definitions, and the settings in which models differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.policy.policy import Admission, SolverKind
from optsched.study.reports.number_text import UNKNOWN
from optsched.study.reports.page import Cell, Section, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def definition_table(model: Mapping[str, Any]) -> Table:
    """Return a table with a model's complete definition."""
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
    budgets = model["budgets"]
    by_weight = model["admission"] == Admission.BY_WEIGHT.value
    solved = f"CP-SAT, up to {budgets['solve']} per session"
    settings = (
        ("admission", "gangs weighted by priority" if by_weight else "priority by priority"),
        ("solver", "none" if model["solver"] == SolverKind.NONE.value else solved),
        ("period", budgets["period"]),
        ("starvation", f"after {budgets['starvationAfter']}"),
        ("reservations", str(model["reservations"])),
    )
    rows += [(Cell(name), Cell(value), Cell("")) for name, value in settings]
    caption = f"{model['name']}: {model['meaning']}" if model["meaning"] else model["name"]
    return Table(caption, ("part", "is", "meaning"), rows, is_sortable=False)


def difference_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the settings in which the models differ."""
    definitions: list[dict[str, str]] = []
    for model in models:
        # Flatten the definition to key-value pairs, in the order of the definition.
        flat = {"actions": ", ".join(model["actions"])}
        for number, tier in enumerate(model["tiers"], 1):
            for plugin in tier:
                key = f"plugin {plugin['name']}"
                flat[key] = f"tier {number}"
                flat |= {f"{key}, {name}": value for name, value in plugin["arguments"].items()}
                flat |= {f"{key}, {name}": "switched" for name in plugin["switched"]}
        flat["levels"] = " > ".join(level["name"] for level in model["levels"])
        flat |= {key: str(model[key]) for key in ("admission", "solver", "reservations")}
        definitions.append(
            flat | {f"budget {key}": value for key, value in model["budgets"].items()}
        )
    keys = list(dict.fromkeys(key for each in definitions for key in each))
    rows = []
    for key in keys:
        values = [each.get(key, UNKNOWN) for each in definitions]
        if len(set(values)) == 1:
            continue
        cells = [Cell(v, css="" if v == values[0] else "changed") for v in values]
        rows.append((Cell(key), *cells))
    names = [model["name"] for model in models]
    caption = "Differences between models" if rows else "The models do not differ"
    return Table(caption, ("key", *names), rows, is_sortable=False)


def model_section(models: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> Section:
    """Return a section on models and their differences; a single model is compared with `base`."""
    alone = len(models) == 1 and models[0] != base
    held = [base, *models] if alone else models
    parts = [difference_table(held)] if len(held) > 1 else []
    heading = "Models" if len(models) > 1 else "Model"
    return Section("model", heading, [*parts, *map(definition_table, models)])
