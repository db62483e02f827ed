"""Read a policy from Volcano's configuration file `volcano-scheduler.conf`.

The reader accepts all fields that Volcano accepts (`pkg/scheduler/conf/scheduler_conf.go`,
`pkg/scheduler/util.go`), and the additional field `solver`. Unknown fields, actions, plugins and
arguments, which Volcano silently ignores, are reported as errors with file and line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from optsched.policy.catalogue import BUILT_IN
from optsched.policy.located import (
    describe_value,
    read_duration_ms,
    read_fields,
    read_items,
    read_string,
)
from optsched.policy.policy import MOST_RESERVATIONS, Budgets, Policy, SolverKind, build_rules
from optsched.policy.policy_sections import (
    ActionReader,
    SolverChoice,
    TierReader,
    arguments_in,
    derive_levels,
    read_arguments,
    read_solver,
    warn_of_idle_actions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.plugins.declaration import Value
    from optsched.policy.catalogue import Catalogue
    from optsched.policy.diagnostic import Findings
    from optsched.policy.located import Field, Node

FIELDS = ("actions", "tiers", "configurations", "metrics", "solver", "pluginsDir")
REQUIRED = ("actions", "tiers")

_NOT_FETCHED = (
    "nothing is fetched from there yet; plugin usage reads the annotation optsched.io/load of nodes"
)


def policy_of_volcano(
    root: Node, source: str, findings: Findings, catalogue: Catalogue = BUILT_IN
) -> Policy:
    """Return the policy that a Volcano scheduler configuration defines.

    If the configuration has an error, raises `PolicyError` with all errors and warnings.
    """
    fields = read_fields(root, FIELDS, findings, required=REQUIRED)
    reader = TierReader("plugin", findings, catalogue)
    tiers = reader.read(fields["tiers"].node) if "tiers" in fields else ()
    known = ActionReader(findings, catalogue)
    actions = _read_actions(fields["actions"].node, known) if "actions" in fields else ()
    if "pluginsDir" in fields:
        read_string(fields["pluginsDir"].node, findings)
    solver = SolverChoice()
    if "solver" in fields:
        solver = read_solver(fields["solver"].node, findings)
    configurations = _read_configurations(fields, known)
    proposers = known.proposers(configurations)
    metrics = _read_metrics(fields, "usage" in reader.spots, findings)
    if "actions" in fields:
        warn_of_idle_actions(actions, solver, fields["actions"].key, findings)
    warnings = findings.settle()
    return Policy(
        name=PurePath(source).name,
        source=source,
        actions=actions,
        tiers=tiers,
        rules=build_rules(tiers, metrics),
        levels=derive_levels(tiers),
        solver=solver.kind,
        budgets=solver.applied_to(Budgets()),
        reservations=0 if solver.kind is SolverKind.NONE else MOST_RESERVATIONS,
        action_arguments=configurations,
        proposers=proposers,
        warnings=warnings,
    )


def _read_actions(node: Node, known: ActionReader) -> tuple[str, ...]:
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
        # If the text has several lines, actions after the first line get the position of the text.
        at = node.spot.excerpt.find(word, start) if word else -1
        start = at + len(word) if at >= 0 else start
        name = known.name(word, replace(node.spot, column=at + 1) if at >= 0 else node.spot)
        found += [name] if name is not None else []
    return tuple(found)


def _read_configurations(
    fields: Mapping[str, Field], known: ActionReader
) -> tuple[tuple[str, tuple[tuple[str, Value], ...]], ...]:
    """Return the arguments of each action in the section `configurations`."""
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
            given = arguments_in(entry, findings)
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
