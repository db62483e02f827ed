"""Read the sections that models and Volcano configurations share.

The sections are actions, plugin arguments, tiers, objective levels and solver.

The functions read YAML nodes and add errors and warnings to `Findings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from optsched.plugins.custom.proposals import Action
from optsched.plugins.declaration import Kind
from optsched.plugins.extension_points import DEFAULT_SWITCHES, Switch
from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.registry import ALIASES, JOB_PLUGINS, PLUGINS
from optsched.plugins.ruleset import select_overriding
from optsched.plugins.shares.tree_fairness import HALF_LIFE
from optsched.policy.catalogue import NEED_SOLVER, build_proposer, find_rule_names
from optsched.policy.diagnostic import nearest
from optsched.policy.located import (
    describe_value,
    read_choice,
    read_duration_ms,
    read_fields,
    read_flag,
    read_hours,
    read_items,
    read_number,
    read_quantity,
    read_string,
    read_whole_number,
    unquote,
)
from optsched.policy.policy import SolverKind, TierPlugin
from optsched.units import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from optsched.plugins.custom.proposals import Proposer
    from optsched.plugins.declaration import Argument, Plugin, Value
    from optsched.policy.catalogue import Catalogue
    from optsched.policy.diagnostic import Findings, Position
    from optsched.policy.located import Field, Node
    from optsched.policy.policy import Budgets

# --- actions -------------------------------------------------------------------------------------


@dataclass
class ActionReader:
    """A reader of action names, which also builds custom actions.

    Attributes
    ----------
    catalogue
        The actions that a policy may name.
    named
        The custom actions that the policy names and the file position of each name, keyed by name.
    """

    findings: Findings
    catalogue: Catalogue
    named: dict[str, tuple[Action, Position]] = field(default_factory=dict)

    def read_name(self, word: str, spot: Position) -> str | None:
        """Return `word` if it names an action; otherwise report an error and return None."""
        action = self.read_action(word, spot)
        if action is None:
            return None
        if action.origin:
            self.named.setdefault(word, (action, spot))
        return word

    def read_action(self, word: str, spot: Position) -> Action | None:
        """Return the action with the name `word`; otherwise report an error and return None."""
        if word in self.named:
            return self.named[word][0]
        action = self.catalogue.find_action(word)
        if isinstance(action, Action):
            return action
        if not word.strip():
            self.findings.error(spot, "an action has no name: write one, or remove the comma")
            return None
        likely = nearest(word, self.catalogue.action_names) if action is None else ""
        self.findings.error(spot, action or f'there is no action "{word}"', likely)
        return None

    def build_proposers(
        self, arguments: Iterable[tuple[str, tuple[tuple[str, Value], ...]]] = ()
    ) -> tuple[Proposer, ...]:
        """Build the custom actions of the policy with the arguments that the policy sets."""
        given_arguments = dict(arguments)
        made = []
        for name, (action, spot) in self.named.items():
            found = build_proposer(action, dict(given_arguments.get(name, ())))
            if isinstance(found, str):
                self.findings.error(spot, f"action {name} of {action.origin}: {found}")
            else:
                made.append(found)
        return tuple(made)


def warn_of_actions_without_effect(
    actions: Sequence[str], solver: SolverChoice, spot: Position, findings: Findings
) -> None:
    """Warn about actions that have no effect because the policy has no solver."""
    for name in NEED_SOLVER.intersection(actions):
        if solver.kind is SolverKind.NONE:
            findings.warn(spot, f"without a solver the action {name} has no effect")


# --- arguments -----------------------------------------------------------------------------------


def _read_names(node: Node, findings: Findings) -> str | None:
    """Return the names in a comma-separated string or a list, joined by commas.

    Returns None if a name is not a string.
    """
    if isinstance(node.value, tuple):
        names = [read_string(each, findings) for each in node.value]
        return None if None in names else ",".join(filter(None, names))
    return "" if node.value == "" else read_string(node, findings)


def _read_url(node: Node, findings: Findings) -> str | None:
    text = read_string(node, findings)
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment:
        message = f"must be {Kind.URL.value}, not {describe_value(node)}"
        findings.error(node.spot, message, "" if "://" in text else f"http://{text}")
        return None
    return text


_READ: Mapping[Kind, Callable[[Argument, Node, Findings], Value | None]] = {
    Kind.SWITCH: lambda _, node, findings: read_flag(unquote(node), findings),
    Kind.WHOLE: lambda a, node, findings: read_whole_number(unquote(node), findings, a.least),
    Kind.NUMBER: lambda a, node, findings: read_number(unquote(node), findings, a.least),
    Kind.DURATION: lambda _, node, findings: (
        None if read_duration_ms(node, findings) is None else node.text
    ),
    Kind.HOURS: lambda _, node, findings: read_hours(node, findings),
    Kind.QUANTITY: lambda _, node, findings: read_quantity(node, findings),
    Kind.TEXT: lambda _, node, findings: "" if node.value == "" else read_string(node, findings),
    Kind.URL: lambda _, node, findings: _read_url(node, findings),
    Kind.NAMES: lambda _, node, findings: _read_names(node, findings),
    Kind.CHOICE: lambda a, node, findings: read_choice(node, a.choices, a.name, findings),
}
"""Maps each argument type to the function that reads arguments of this type."""


def read_arguments(
    given: Mapping[str, Field], known: Sequence[Argument], owner: str, findings: Findings
) -> tuple[tuple[str, Value], ...]:
    """Return the valid arguments of a plugin or action, which messages call `owner`."""
    found: list[tuple[str, Value]] = []
    for name, (key, node) in given.items():
        argument = next((a for a in known if a.accepts(name)), None)
        if argument is None:
            likely = nearest(name, (a.name for a in known if not a.name.endswith("*")))
            findings.error(key, f"{owner} has no such argument", likely)
            continue
        if argument.kind is Kind.MAPPING:
            inner = read_fields(node, None, findings)
            held = read_arguments(inner, argument.fields, f"{name} of {owner}", findings)
            found += [(f"{name}.{key_of}", value) for key_of, value in held]
            continue
        if argument.kind is Kind.LIST:
            for number, entry in enumerate(read_items(node, findings)):
                inner = read_fields(entry, None, findings)
                whose = f"{argument.name}[{number}] of {owner}"
                held = read_arguments(inner, argument.fields, whose, findings)
                found += [(f"{argument.name}.{number}.{key_of}", value) for key_of, value in held]
            continue
        read = _READ.get(argument.kind)
        value = None if read is None else read(argument, node, findings)
        if value is not None:
            found.append((name, value))
    return tuple(found)


def find_arguments(fields: Mapping[str, Field], findings: Findings) -> Mapping[str, Field]:
    """Return the fields of the mapping `arguments`; empty if the mapping is missing."""
    if "arguments" not in fields or fields["arguments"].node.value is None:
        return {}
    return read_fields(fields["arguments"].node, None, findings)


# --- tiers ---------------------------------------------------------------------------------------

_SWITCHES = {switch.value: switch for switch in Switch}


_MISSPELT = {
    switch.replace("enabled", "enable", 1)
    if switch.startswith("enabled")
    else switch.replace("enable", "enabled", 1): switch
    for switch in _SWITCHES
}
"""Maps likely misspellings to switches, such as `enableJobOrder` to `enabledJobOrder`."""


@dataclass
class TierReader:
    """A reader of the policy's tiers, which also records where each plugin is named.

    Attributes
    ----------
    word
        The word that messages use for a plugin in a tier: "plugin" or "rule".
    catalogue
        The plugins that a policy may name.
    spots
        Maps each plugin name to its position in the file.
    is_complete
        Whether every plugin in every tier could be read. If `is_complete` is false, objective
        levels without a rule are not reported.
    rule_owners
        Maps each custom rule name to the name of the custom plugin that defines the rule.
    """

    word: str
    findings: Findings
    catalogue: Catalogue
    spots: dict[str, Position] = field(default_factory=dict)
    is_complete: bool = True
    rule_owners: dict[str, str] = field(default_factory=dict)

    def read(self, node: Node) -> tuple[tuple[TierPlugin, ...], ...]:
        """Return the plugins of each tier, and report invalid plugins."""
        key, found_tiers = f"{self.word}s", []
        for each in read_items(node, self.findings):
            fields = read_fields(each, [key], self.findings, required=[key])
            listed = read_items(fields[key].node, self.findings) if key in fields else ()
            entries = (self._read_plugin(entry) for entry in listed)
            found_tiers.append(tuple(entry for entry in entries if entry is not None))
        tiers = tuple(found_tiers)
        if not tiers:
            self.findings.error(node.spot, f"names no {self.word}")
        self._check_combinations(tiers)
        # All plugins share one record of queue usage, which can have only one half-life.
        configured = [(p.name, dict(p.arguments)) for tier in tiers for p in tier]
        found = [
            (name, str(given_arguments[HALF_LIFE]))
            for name, given_arguments in configured
            if HALF_LIFE in given_arguments
        ]
        for name, text in found[1:]:
            first, other = found[0]
            if parse_duration_ms(text) != parse_duration_ms(other):
                message = f"{HALF_LIFE} is {text} here, but {other} in {first}; set equal values"
                self.findings.error(self.spots[name], message)
        return tiers

    def _read_plugin(self, node: Node) -> TierPlugin | None:
        fields = read_fields(node, None, self.findings, required=["name"])
        switches = self._read_switches(fields)
        plugin = self._find_plugin(fields["name"].node) if "name" in fields else None
        if plugin is None:
            return None
        given = find_arguments(fields, self.findings)
        owner = f"{self.word} {plugin.name}"
        arguments = read_arguments(given, plugin.arguments, owner, self.findings)
        if plugin.name == "binpack":
            prefix = "binpack.resources."
            listed = str(dict(arguments).get("binpack.resources", ""))
            counted = {name.strip() for name in listed.split(",")}
            for name, _ in arguments:
                resource = name.removeprefix(prefix)
                if name.startswith(prefix) and resource not in counted:
                    message = f"has no effect: binpack.resources does not name {resource}"
                    self.findings.warn(given[name].key, message)
        if plugin.name == "deviceshare":
            self._check_sharing(dict(arguments), given)
        if plugin.name == "extender":
            names, spot = [name for name, _ in arguments], fields["name"].node.spot
            if "extender.urlPrefix" not in names:
                self.findings.error(spot, "extender needs the argument extender.urlPrefix")
            if not any(name.endswith("Verb") for name in names):
                self.findings.warn(spot, "has no effect: no argument extender.*Verb is set")
        if plugin.name == "resource-strategy-fit" and "resources" in given:
            for name, (key, _) in read_fields(given["resources"].node, None, self.findings).items():
                if "*" in name[:-1] or name == "*":
                    message = "an asterisk is accepted only at the end of a name, after a prefix"
                    self.findings.error(key, message)
        if not plugin.origin:
            return TierPlugin(plugin.name, arguments, switches)
        found = find_rule_names(plugin, dict(arguments), self.rule_owners)
        if isinstance(found, str):
            where = f"{owner} of {plugin.origin}"
            self.findings.error(fields["name"].node.spot, f"{where}: {found}")
        else:
            self.rule_owners |= dict.fromkeys(found, plugin.name)
        return TierPlugin(plugin.name, arguments, switches, plugin)

    def _find_plugin(self, node: Node) -> Plugin | None:
        written = read_string(node, self.findings)
        if written is None:
            return None
        name = ALIASES.get(written, written)
        if name in JOB_PLUGINS:
            message = f"{name} is a job plugin, not a scheduler plugin, and is ignored"
            self.findings.warn(node.spot, message)
            return None
        plugin = self.catalogue.find_plugin(name)
        if plugin is None or isinstance(plugin, str):
            self.is_complete = False
            likely = nearest(name, (*self.catalogue.names, *ALIASES)) if plugin is None else ""
            message = plugin or f'there is no {self.word} "{name}"'
            self.findings.error(node.spot, message, likely)
            return None
        if name in self.spots:
            first = self.spots[name].line
            self.findings.error(
                node.spot, f"{self.word} {name} appears twice; first in line {first}"
            )
            return None
        self.spots[name] = node.spot
        return plugin

    def _read_switches(self, fields: Mapping[str, Field]) -> frozenset[Switch]:
        """Return the enabled switches of a plugin: those that the policy or a default enables."""
        turned: dict[Switch, bool] = {}
        for name, (key, node) in fields.items():
            if name in ("name", "arguments"):
                continue
            switch = _MISSPELT.get(name, name)
            if switch not in _SWITCHES:
                known = ("name", "arguments", *_SWITCHES)
                self.findings.error(key, "there is no such field", nearest(name, known))
                continue
            if switch != name:
                self.findings.warn(
                    key, f"Volcano spells it {switch} and would ignore this spelling"
                )
            value = read_flag(node, self.findings)
            if value is not None and (switch == name or switch not in fields):
                turned[_SWITCHES[switch]] = value
        on = {switch for switch, value in turned.items() if value}
        return (DEFAULT_SWITCHES - turned.keys()) | on

    def _check_sharing(self, arguments: Mapping[str, Value], given: Mapping[str, Field]) -> None:
        """Report arguments that enable two GPU sharing modes, or an unsupported mode."""
        names = [f"deviceshare.{way}Enable" for way in ("GPUSharing", "GPUNumber", "VGPU")]
        first, *others = [n for n in names if arguments.get(n)] or [""]
        for name in others:
            message = f"cannot be enabled together with {first}: a GPU is shared in one way only"
            self.findings.error(given[name].key, message)
        other = "deviceshare.AscendMindClusterVNPUEnable"
        if arguments.get(other):
            message = (
                "is not available: optsched does not read the ConfigMaps in which MindCluster "
                "reports NPUs; deviceshare.AscendHAMiVNPUEnable shares the NPUs that nodes report"
            )
            self.findings.error(given[other].key, message)

    def _check_combinations(self, tiers: Iterable[Sequence[TierPlugin]]) -> None:
        if "proportion" not in self.spots:
            return
        if "capacity" in self.spots:
            later = max(self.spots["proportion"], self.spots["capacity"], key=lambda s: s.line)
            message = "proportion and capacity both set queue shares: enable only one of them"
            self.findings.error(later, message)
        for plugin in (p for tier in tiers for p in tier):
            if plugin.name == "drf" and Switch.HIERARCHY in plugin.switches:
                message = (
                    f"drf with {Switch.HIERARCHY.value} cannot be used together with proportion"
                )
                self.findings.error(self.spots["drf"], message)


# --- levels --------------------------------------------------------------------------------------

VOLUME_SHAPE = "volumebinding.shape"
"""The argument that makes the plugin `predicates` score nodes."""


def _plugins_by_level() -> dict[str, tuple[str, ...]]:
    """Map each objective level that needs a plugin to the plugins that give it an effect."""
    needs: dict[str, tuple[str, ...]] = {}
    for name in LEVELS:
        served = (p.name for p in PLUGINS.values() if any(k.name == name for k in p.levels))
        needs[name] = tuple(served)
    needs["node-score"] = tuple(
        plugin.name
        for plugin in PLUGINS.values()
        if select_overriding(plugin.build({}), "scorer", "class_score")
    )
    return {name: plugins for name, plugins in needs.items() if plugins}


LEVEL_PLUGINS: Mapping[str, tuple[str, ...]] = _plugins_by_level()
"""Maps each objective level to the plugins that can give it an effect.

A level has no effect if the policy enables none of its plugins.
"""


def derive_levels(tiers: Iterable[Sequence[TierPlugin]]) -> tuple[str, ...]:
    """Return, in order, the objective levels that have an effect with the plugins in `tiers`."""
    kept = list(tiers)
    return tuple(level for level in LEVELS if has_effect(level, kept))


def has_effect(level: str, tiers: Iterable[Sequence[TierPlugin]]) -> bool:
    """Return whether an objective level has an effect with the plugins in `tiers`."""
    if level not in LEVEL_PLUGINS:
        return True
    plugins = [plugin for tier in tiers for plugin in tier]
    if level == "node-score":
        # Every custom plugin may score nodes.
        return any(
            Switch.NODE_ORDER in p.switches
            and (
                p.plugin is not None
                or p.name in LEVEL_PLUGINS[level]
                or any(key.startswith(VOLUME_SHAPE) for key, _ in p.arguments)
            )
            for p in plugins
        )
    return any(p.name in LEVEL_PLUGINS[level] for p in plugins)


# --- solver --------------------------------------------------------------------------------------


@dataclass
class SolverChoice:
    """The solver settings of a policy, where None means the default."""

    kind: SolverKind = SolverKind.CPSAT
    budget_ms: int | None = None
    deterministic_s: float | None = None

    def apply_to(self, budgets: Budgets) -> Budgets:
        """Return a copy of `budgets` with these solver settings.

        If the policy sets no solve time, the solve time is the shorter of the default and the
        period.
        """
        return replace(
            budgets,
            solve_ms=self.budget_ms or min(budgets.solve_ms, budgets.period_ms),
            deterministic_s=self.deterministic_s or budgets.deterministic_s,
        )


def read_solver(node: Node, findings: Findings) -> SolverChoice:
    """Read the solver settings from a solver name or from a mapping with time limits."""
    if isinstance(node.value, str):
        return SolverChoice(_read_engine(node, findings))
    known = ("engine", "budget", "deterministicTime")
    fields = read_fields(node, known, findings, required=["engine"])
    choice = SolverChoice()
    if "engine" in fields:
        choice.kind = _read_engine(fields["engine"].node, findings)
    if "budget" in fields:
        choice.budget_ms = read_duration_ms(fields["budget"].node, findings)
    if "deterministicTime" in fields:
        choice.deterministic_s = read_number(fields["deterministicTime"].node, findings, 0.001)
    return choice


def _read_engine(node: Node, findings: Findings) -> SolverKind:
    name = read_choice(node, [kind.value for kind in SolverKind], "solver", findings)
    return SolverKind(name) if name else SolverKind.CPSAT
