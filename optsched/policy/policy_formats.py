"""Read a policy from a scheduling model or from Volcano's `volcano-scheduler.conf`.

A model is optsched's own format. A model defines a complete policy: actions, tiers of rules,
objective levels, admission, solver and time limits. See docs/configuration.md.

The reader of Volcano's format accepts all fields that Volcano accepts
(`pkg/scheduler/conf/scheduler_conf.go`, `pkg/scheduler/util.go`), and the additional field
`solver`. Unknown fields, actions, plugins and arguments, which Volcano silently ignores, are
reported as errors with file and line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from optsched.plugins.objectives.levels import LEVELS
from optsched.policy.located import (
    describe_value,
    read_choice,
    read_duration_ms,
    read_fields,
    read_items,
    read_string,
    read_whole_number,
)
from optsched.policy.policy import (
    MOST_RESERVATIONS,
    Admission,
    Budgets,
    Policy,
    SolverKind,
    build_rules,
)
from optsched.policy.policy_sections import (
    LEVEL_PLUGINS,
    ActionReader,
    SolverChoice,
    TierReader,
    derive_levels,
    find_arguments,
    has_effect,
    read_arguments,
    read_solver,
    warn_of_actions_without_effect,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.plugins.declaration import Value
    from optsched.policy.catalogue import Catalogue
    from optsched.policy.diagnostic import Findings
    from optsched.policy.located import Field, Node
    from optsched.policy.policy import TierPlugin

# --- scheduling models ---------------------------------------------------------------------------

API_VERSION = "optsched.io/v1alpha1"
KIND = "Model"
_MODEL_REQUIRED = ("apiVersion", "kind", "name", "actions", "tiers", "levels")
MODEL_FIELDS = (
    *_MODEL_REQUIRED,
    "meaning",
    "admission",
    "solver",
    "period",
    "starvationAfter",
    "reservations",
    "maxMoves",
    "pluginsDir",
)


def read_model(root: Node, source: str, findings: Findings, catalogue: Catalogue) -> Policy:
    """Return the policy that a model defines.

    If the model has an error, raises `PolicyError` with all errors and warnings.
    """
    fields = read_fields(root, MODEL_FIELDS, findings, required=_MODEL_REQUIRED)
    if "apiVersion" in fields:
        read_choice(fields["apiVersion"].node, [API_VERSION], "version", findings)
    if "kind" in fields:
        read_choice(fields["kind"].node, [KIND], "kind", findings)
    reader = TierReader("rule", findings, catalogue)
    tiers = reader.read(fields["tiers"].node) if "tiers" in fields else ()
    known = ActionReader(findings, catalogue)
    actions = _read_model_actions(fields, known)
    proposers = known.build_proposers()
    levels = _read_levels(fields, tiers if reader.is_complete else None, findings)
    admission = _read_admission(fields, tiers, findings)
    solver = read_solver(fields["solver"].node, findings) if "solver" in fields else SolverChoice()
    action_arguments: tuple[tuple[str, tuple[tuple[str, Value], ...]], ...] = ()
    if "maxMoves" in fields:
        max_moves = read_whole_number(fields["maxMoves"].node, findings, 0)
        if max_moves is not None:
            action_arguments = (("consolidation", (("maxMoves", max_moves),)),)
    budgets = solver.apply_to(_read_budgets(fields, findings))
    name = read_string(fields["name"].node, findings) if "name" in fields else None
    meaning = read_string(fields["meaning"].node, findings) if "meaning" in fields else None
    if "pluginsDir" in fields:
        read_string(fields["pluginsDir"].node, findings)
    if solver.budget_ms is not None and solver.budget_ms > budgets.period_ms:
        findings.error(fields["solver"].key, "its budget must not be longer than the period")
    if "actions" in fields:
        warn_of_actions_without_effect(actions, solver, fields["actions"].key, findings)
    # Only a solver uses reservations.
    reservations = 0 if solver.kind is SolverKind.NONE else MOST_RESERVATIONS
    if "reservations" in fields:
        number = read_whole_number(fields["reservations"].node, findings, 0)
        reservations = reservations if number is None else int(number)
    warnings = findings.raise_errors()
    return Policy(
        name=name or "",
        source=source,
        actions=actions,
        tiers=tiers,
        rules=build_rules(tiers),
        levels=levels,
        admission=admission,
        solver=solver.kind,
        budgets=budgets,
        reservations=reservations,
        proposers=proposers,
        action_arguments=action_arguments,
        meaning=meaning or "",
        warnings=warnings,
    )


def _read_model_actions(fields: Mapping[str, Field], known: ActionReader) -> tuple[str, ...]:
    if "actions" not in fields:
        return ()
    node, findings = fields["actions"].node, known.findings
    nodes = read_items(node, findings)
    if node.value == ():
        findings.error(node.spot, "names no action")
    words = [(read_string(n, findings), n.spot) for n in nodes]
    found = [known.read_name(word, spot) for word, spot in words if word is not None]
    return tuple(name for name in found if name is not None)


def _read_levels(
    fields: Mapping[str, Field], tiers: Sequence[Sequence[TierPlugin]] | None, findings: Findings
) -> tuple[str, ...]:
    """Return the objective levels; report each level for which `tiers` contains no rule."""
    if "levels" not in fields:
        return ()
    found: dict[str, int] = {}
    for node in read_items(fields["levels"].node, findings):
        name = read_choice(node, LEVELS, "level", findings)
        if name is None:
            continue
        if name in found:
            findings.error(node.spot, f"level {name} appears twice; first in line {found[name]}")
        elif tiers is not None and not has_effect(name, tiers):
            needs = " or ".join(LEVEL_PLUGINS[name])
            findings.error(node.spot, f"level {name} needs the rule {needs}")
        found.setdefault(name, node.spot.line)
    return tuple(found)


def _read_admission(
    fields: Mapping[str, Field], tiers: Sequence[Sequence[TierPlugin]], findings: Findings
) -> Admission:
    if "admission" not in fields:
        return Admission.BY_PRIORITY
    inner = read_fields(fields["admission"].node, ["by"], findings, required=["by"])
    if "by" not in inner:
        return Admission.BY_PRIORITY
    node = inner["by"].node
    name = read_choice(node, [a.value for a in Admission], "admission mode", findings)
    admission = Admission(name) if name else Admission.BY_PRIORITY
    knows = any(p.name == "priority" for tier in tiers for p in tier)
    if admission is Admission.BY_WEIGHT and not knows:
        findings.warn(node.spot, "without the rule priority, all gangs are equally important")
    return admission


def _read_budgets(fields: Mapping[str, Field], findings: Findings) -> Budgets:
    budgets = Budgets()
    if "period" in fields:
        period = read_duration_ms(fields["period"].node, findings)
        budgets = replace(budgets, period_ms=period or budgets.period_ms)
    if "starvationAfter" in fields:
        after = read_duration_ms(fields["starvationAfter"].node, findings)
        budgets = replace(budgets, starvation_after_ms=after or budgets.starvation_after_ms)
    return budgets


# --- Volcano's configuration ---------------------------------------------------------------------

VOLCANO_FIELDS = ("actions", "tiers", "configurations", "metrics", "solver", "pluginsDir")
_VOLCANO_REQUIRED = ("actions", "tiers")

_NOT_FETCHED = (
    "node load is not fetched from this source; plugin usage reads node annotation optsched.io/load"
)


def read_volcano_configuration(
    root: Node, source: str, findings: Findings, catalogue: Catalogue
) -> Policy:
    """Return the policy that a Volcano scheduler configuration defines.

    If the configuration has an error, raises `PolicyError` with all errors and warnings.
    """
    fields = read_fields(root, VOLCANO_FIELDS, findings, required=_VOLCANO_REQUIRED)
    reader = TierReader("plugin", findings, catalogue)
    tiers = reader.read(fields["tiers"].node) if "tiers" in fields else ()
    known = ActionReader(findings, catalogue)
    actions = _read_volcano_actions(fields["actions"].node, known) if "actions" in fields else ()
    if "pluginsDir" in fields:
        read_string(fields["pluginsDir"].node, findings)
    solver = SolverChoice()
    if "solver" in fields:
        solver = read_solver(fields["solver"].node, findings)
    configurations = _read_configurations(fields, known)
    proposers = known.build_proposers(configurations)
    metrics = _read_metrics(fields, "usage" in reader.spots, findings)
    if "actions" in fields:
        warn_of_actions_without_effect(actions, solver, fields["actions"].key, findings)
    warnings = findings.raise_errors()
    return Policy(
        name=PurePath(source).name,
        source=source,
        actions=actions,
        tiers=tiers,
        rules=build_rules(tiers, metrics),
        levels=derive_levels(tiers),
        solver=solver.kind,
        budgets=solver.apply_to(Budgets()),
        reservations=0 if solver.kind is SolverKind.NONE else MOST_RESERVATIONS,
        action_arguments=configurations,
        proposers=proposers,
        warnings=warnings,
    )


def _read_volcano_actions(node: Node, known: ActionReader) -> tuple[str, ...]:
    """Return the actions in a comma-separated string; report each unknown name with its line."""
    findings = known.findings
    if isinstance(node.value, tuple):
        likely = ", ".join(n.text for n in node.value)
        findings.error(node.spot, "must be a string with commas between actions", f'"{likely}"')
        return ()
    if node.value is None or (isinstance(node.value, str) and not node.value.strip(" ,")):
        findings.error(node.spot, 'names no action: write some, such as "enqueue, allocate"')
        return ()
    text = read_string(node, findings)
    if text is None:
        return ()
    found: list[str] = []
    start = node.spot.column - 1
    for part in text.split(","):
        word = part.strip()
        # An action on a later line of the text gets the position at which the text starts.
        at = node.spot.excerpt.find(word, start) if word else -1
        start = at + len(word) if at >= 0 else start
        name = known.read_name(word, replace(node.spot, column=at + 1) if at >= 0 else node.spot)
        found += [name] if name is not None else []
    return tuple(found)


def _read_configurations(
    fields: Mapping[str, Field], known: ActionReader
) -> tuple[tuple[str, tuple[tuple[str, Value], ...]], ...]:
    findings = known.findings
    if "configurations" not in fields:
        return ()
    found = []
    for node in read_items(fields["configurations"].node, findings):
        entry = read_fields(node, ("name", "arguments"), findings, required=["name"])
        if "name" not in entry:
            continue
        name = read_string(entry["name"].node, findings)
        action = None if name is None else known.read_action(name, entry["name"].node.spot)
        if action is not None:
            given = find_arguments(entry, findings)
            owner = f"action {action.name}"
            found.append((action.name, read_arguments(given, action.arguments, owner, findings)))
    return tuple(found)


def _read_metrics(
    fields: Mapping[str, Field], is_wanted: bool, findings: Findings
) -> tuple[tuple[str, str], ...]:
    """Return the fields of the section `metrics`, which configures the source of node load.

    If the policy uses the plugin `usage`, warns that no load is fetched from this source.
    """
    if "metrics" not in fields:
        return ()
    key, node = fields["metrics"]
    if is_wanted:
        findings.warn(key, _NOT_FETCHED)
    known = read_fields(node, None, findings)
    interval = known.get("interval")
    if interval is not None and read_duration_ms(interval.node, findings) is None:
        known = {name: field for name, field in known.items() if name != "interval"}
    return tuple(_flatten(known, findings))


def _flatten(
    fields: Mapping[str, Field], findings: Findings, prefix: str = ""
) -> Iterator[tuple[str, str]]:
    for name, (_, node) in fields.items():
        if node.value is None or isinstance(node.value, bool | int | float | str):
            yield f"{prefix}{name}", node.text
        elif isinstance(node.value, tuple):
            findings.error(node.spot, f"must be text or a mapping, not {describe_value(node)}")
        else:
            yield from _flatten(node.value, findings, f"{prefix}{name}.")
