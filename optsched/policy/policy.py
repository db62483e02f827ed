"""Define the scheduler policy: actions, rules in tiers, objective levels, solver and time limits.

A policy is plain data, which the loaders of this package create and sessions only read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from optsched.plugins.extension_points import DEFAULT_SWITCHES, Switch
from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.units import count_noun, format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.plugins.custom.proposals import Proposer
    from optsched.plugins.declaration import Plugin, Value
    from optsched.policy.diagnostic import Diagnostic


MOST_RESERVATIONS = 4
"""Default maximum number of gangs with a reservation; the field `reservations` overrides it."""


class Admission(Enum):
    """Whether the objective level `admission` is split by priority or is one weighted sum."""

    BY_PRIORITY = "priority"
    BY_WEIGHT = "weight"


class SolverKind(Enum):
    """The solver that improves the greedy plan; `NONE` keeps the greedy plan."""

    CPSAT = "cpsat"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Budgets:
    """The time limits of a session.

    Attributes
    ----------
    solve_ms
        Wall time of the solver in each session, in milliseconds.
    period_ms
        Time from the start of one session to the start of the next, in milliseconds.
    starvation_after_ms
        Waiting time in milliseconds after which a gang precedes other gangs of its priority.
    deterministic_s
        Solver work limit for each objective level, in CP-SAT deterministic time. In runs that read
        no clock, `deterministic_s` replaces `solve_ms`.
    """

    solve_ms: int = 400
    period_ms: int = 1000
    starvation_after_ms: int = 60_000
    deterministic_s: float = 10.0


@dataclass(frozen=True, slots=True)
class TierPlugin:
    """A plugin in a policy tier, with its arguments and its enabled extension points."""

    name: str
    arguments: tuple[tuple[str, Value], ...] = ()
    switches: frozenset[Switch] = DEFAULT_SWITCHES
    plugin: Plugin | None = None
    """The declaration of a custom plugin, or None for a built-in plugin."""

    @property
    def resolved(self) -> Plugin:
        """The declaration of the plugin, either custom or built-in."""
        return self.plugin or PLUGINS[self.name]


@dataclass(frozen=True, eq=False)
class Policy:
    """A valid policy, which determines how sessions schedule.

    Attributes
    ----------
    name
        Name of the model or the file.
    source
        The file from which the policy was read, or `model NAME` for a shipped model.
    meaning
        The purpose of the policy in one sentence, or an empty string.
    actions
        Names of the actions, in execution order.
    tiers
        The plugins of each tier, from which `rules` is built.
    rules
        The rules in call order, each with its plugin, tier and extension points.
    levels
        Names of the objective levels, the most important first; see `LEVELS` in
        `optsched.plugins.objectives`.
    admission, solver, budgets
        How the level `admission` combines priorities, the solver, and the time limits of a session.
    reservations
        Maximum number of starving gangs for which future capacity is reserved; 0 disables
        reservations.
    action_arguments
        The arguments of each action, as in Volcano's `configurations`.
    proposers
        The custom actions of the policy, built with the arguments that the policy sets.
    warnings
        Warnings about settings that are likely mistakes.
    plugin_files
        The (path, text) pair of each file that defines custom plugins.
    """

    name: str
    source: str
    actions: tuple[str, ...]
    tiers: tuple[tuple[TierPlugin, ...], ...]
    rules: RuleSet
    levels: tuple[str, ...]
    admission: Admission = Admission.BY_PRIORITY
    solver: SolverKind = SolverKind.CPSAT
    budgets: Budgets = Budgets()
    reservations: int = MOST_RESERVATIONS
    meaning: str = ""
    action_arguments: tuple[tuple[str, tuple[tuple[str, Value], ...]], ...] = ()
    proposers: tuple[Proposer, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    plugin_files: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def without_solver(policy: Policy) -> Policy:
    """Return a copy of the policy without a solver or reservations; the greedy plan is used."""
    return replace(policy, solver=SolverKind.NONE, reservations=0)


def with_solver(policy: Policy, solver: SolverKind | str | None) -> Policy:
    """Return the policy with the given solver, or the same policy if `solver` is None."""
    if solver is None:
        return policy
    kind = SolverKind(solver)
    return without_solver(policy) if kind is SolverKind.NONE else replace(policy, solver=kind)


def build_rules(
    tiers: Iterable[Sequence[TierPlugin]], metrics: Iterable[tuple[str, str]] = ()
) -> RuleSet:
    """Build the rules of all plugins, in plugin order; tiers are numbered from 1.

    The plugin arguments must be valid. `metrics` holds the fields of the policy section `metrics`;
    rules read only the field `interval`.
    """
    delays = {f"metrics.{key}": value for key, value in metrics if key == "interval"}
    rules: list[ActiveRule] = []
    for number, tier in enumerate(tiers, 1):
        for plugin in tier:
            # Some rules depend on the plugin's switches for hierarchy and reclaim.
            read = (Switch.HIERARCHY, Switch.RECLAIMABLE)
            switches = {switch.value: switch in plugin.switches for switch in read}
            built = plugin.resolved.build({**dict(plugin.arguments), **switches, **delays})
            origin = plugin.resolved.origin
            rules += (ActiveRule(r, plugin.name, number, plugin.switches, origin) for r in built)
    return RuleSet(tuple(rules))


# --- in words ------------------------------------------------------------------------------------

_ADMISSION = {
    Admission.BY_PRIORITY: "one level for each priority, the highest first",
    Admission.BY_WEIGHT: "one level, gangs weighted by priority and dominant resource",
}


def definition(policy: Policy) -> dict[str, Any]:
    """Return a model definition as JSON; models with equal settings give equal JSON."""
    budgets = policy.budgets
    return {
        "name": policy.name,
        "meaning": policy.meaning,
        "actions": list(policy.actions),
        "tiers": [
            [
                {
                    "name": plugin.name,
                    "meaning": plugin.resolved.meaning,
                    "arguments": {name: str(value) for name, value in plugin.arguments},
                    "switched": [
                        f.value for f in Switch if (f in plugin.switches) != (f in DEFAULT_SWITCHES)
                    ],
                }
                for plugin in tier
            ]
            for tier in policy.tiers
        ],
        "levels": [{"name": name, "meaning": LEVELS[name].meaning} for name in policy.levels],
        "admission": policy.admission.value,
        "solver": policy.solver.value,
        "reservations": policy.reservations,
        "budgets": {
            "solve": format_duration_ms(budgets.solve_ms),
            "period": format_duration_ms(budgets.period_ms),
            "starvationAfter": format_duration_ms(budgets.starvation_after_ms),
            "deterministic": f"{budgets.deterministic_s:g}",
        },
    }


def describe(policy: Policy) -> str:
    """Return the description of a policy: its actions, plugins, levels and time limits."""
    budgets, number = policy.budgets, policy.reservations
    solver = f"CP-SAT, up to {format_duration_ms(budgets.solve_ms)} per session"
    if policy.solver is SolverKind.NONE:
        solver = "none; the greedy pipeline decides"
    settings = {
        "admission": _ADMISSION[policy.admission],
        "solver": solver,
        "period": format_duration_ms(budgets.period_ms),
        "starvation": f"after {format_duration_ms(budgets.starvation_after_ms)}",
        "reserved": f"for up to {count_noun(number, 'gang')}" if number else "none",
    }
    return "\n".join(
        [
            f"{policy.name} ({policy.source})",
            *([policy.meaning] if policy.meaning else []),
            "",
            *_table([("actions", ", ".join(policy.actions), "")]),
            *_table(
                (f"tier {number}" if not i else "", plugin.name, _plugin_text(plugin))
                for number, tier in enumerate(policy.tiers, 1)
                for i, plugin in enumerate(tier)
            ),
            *_table(
                ("levels" if not i else "", f"{i + 1}. {name}", LEVELS[name].meaning)
                for i, name in enumerate(policy.levels)
            ),
            *_table((name, text, "") for name, text in settings.items()),
        ]
    )


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield one line of text for each row (heading, name, meaning), in aligned columns."""
    kept = list(rows)
    width = max((len(name) for _, name, _ in kept), default=0)
    for head, name, meaning in kept:
        yield f"{head:<11}{name:<{width}}  {meaning}".rstrip()


def _plugin_text(plugin: TierPlugin) -> str:
    known = plugin.resolved
    words = [known.meaning]
    words += [f"from {known.origin}"] if known.origin else []
    words += [f"{name} = {value}" for name, value in plugin.arguments]
    words += [
        f"{switch.value}: false"
        for switch in Switch
        if switch in DEFAULT_SWITCHES - plugin.switches
    ]
    words += [
        f"{switch.value}: true" for switch in Switch if switch in plugin.switches - DEFAULT_SWITCHES
    ]
    return "; ".join(words)
