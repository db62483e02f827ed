"""The configuration of a scheduler: actions, rules in tiers, levels, solver and budgets.

A policy is plain data. The loaders of this package make policies; sessions only read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from optsched.plugins.faces import DEFAULT_FACES, Face
from optsched.plugins.objectives.levels import LEVELS
from optsched.plugins.registry import PLUGINS
from optsched.plugins.ruleset import ActiveRule, RuleSet
from optsched.plugins.wording import count_noun
from optsched.units import format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from optsched.plugins.custom.proposals import Proposer
    from optsched.plugins.declaration import Plugin, Value
    from optsched.policy.diagnostic import Problem


MOST_RESERVATIONS = 4
"""The most gangs with a reservation at the same time, unless a model sets `reservations`."""


class Admission(Enum):
    """The form of the level `admission`: one level per priority, or one weighted by priority."""

    BY_PRIORITY = "priority"
    BY_WEIGHT = "weight"


class SolverKind(Enum):
    """The solver that improves the greedy plan."""

    CPSAT = "cpsat"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Budgets:
    """Time limits of a session.

    Attributes
    ----------
    solve_ms
        Wall time of the solver in a session.
    period_ms
        Time from the start of one session to the start of the next.
    starvation_after_ms
        Gangs that have waited longer precede the other gangs of their priority.
    deterministic_s
        Solver work for each level, in CP-SAT's deterministic seconds, where no clock is read.

    """

    solve_ms: int = 400
    period_ms: int = 1000
    starvation_after_ms: int = 60_000
    deterministic_s: float = 10.0


@dataclass(frozen=True, slots=True)
class TierPlugin:
    """A plugin as a tier names it, with its arguments and the extension points left on."""

    name: str
    arguments: tuple[tuple[str, Value], ...] = ()
    faces: frozenset[Face] = DEFAULT_FACES
    plugin: Plugin | None = None
    """The plugin itself if it is custom, or None for a built-in plugin."""

    @property
    def resolved(self) -> Plugin:
        """The plugin with this name."""
        return self.plugin or PLUGINS[self.name]


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy, checked and ready for sessions.

    Attributes
    ----------
    name
        Name of the model or the file.
    source
        The file that the policy was read from, or `model NAME` for a shipped model.
    meaning
        The purpose, in a sentence; empty without one.
    actions
        Names of the actions, in the order in which they run.
    tiers
        The plugins as they were named; `rules` is made from them.
    rules
        The rules in the order in which they are called, with plugin, tier and extension points.
    levels
        Levels of the objective, the most important first; see `LEVELS` in
        `optsched.plugins.objectives`.
    admission, solver, budgets
        See their types.
    reservations
        The most starving gangs for which capacity is reserved from an instant on; 0 for none.
    action_arguments
        The arguments of single actions in Volcano's `configurations`.
    proposers
        The custom actions of the policy, built with their arguments.
    metrics
        Volcano's section `metrics`, by dotted field; may hold a password.
    warnings
        Warnings about settings that are likely mistakes.
    plugin_files
        Path and text of the files that define custom plugins.

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
    metrics: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    warnings: tuple[Problem, ...] = ()
    plugin_files: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def without_solver(policy: Policy) -> Policy:
    """Return the policy without solver and reservations: the greedy pipeline decides alone."""
    return replace(policy, solver=SolverKind.NONE, reservations=0)


def with_solver(policy: Policy, solver: SolverKind | str | None) -> Policy:
    """Return the policy with another solver; None leaves the policy's solver."""
    if solver is None:
        return policy
    kind = SolverKind(solver)
    return without_solver(policy) if kind is SolverKind.NONE else replace(policy, solver=kind)


def build_rules(
    tiers: Iterable[Sequence[TierPlugin]], metrics: Iterable[tuple[str, str]] = ()
) -> RuleSet:
    """Return the rules of plugins, in the order of the plugins; tiers count from 1.

    The arguments have to be checked already. `metrics` names the source of measured load.
    """
    delays = {f"metrics.{key}": value for key, value in metrics if key == "interval"}
    return RuleSet(
        tuple(
            ActiveRule(rule, plugin.name, number, plugin.faces, plugin.resolved.origin)
            for number, tier in enumerate(tiers, 1)
            for plugin in tier
            for rule in plugin.resolved.build({**_arguments(plugin), **delays})
        )
    )


def _arguments(plugin: TierPlugin) -> dict[str, Value]:
    """Return a plugin's arguments, together with the switches that its rules read."""
    switches = {f.value: f in plugin.faces for f in (Face.HIERARCHY, Face.RECLAIMABLE)}
    return {**dict(plugin.arguments), **switches}


# --- in words ------------------------------------------------------------------------------------

_ADMISSION = {
    Admission.BY_PRIORITY: "one level for each priority, the highest first",
    Admission.BY_WEIGHT: "one level, gangs weighted by priority and dominant resource",
}


def describe(policy: Policy) -> str:
    """Return a text with a policy's actions, rules, levels in order, and budgets."""
    return "\n".join(
        [
            f"{policy.name} ({policy.source})",
            *([policy.meaning] if policy.meaning else []),
            "",
            *_table([("actions", ", ".join(policy.actions), "")]),
            *_table(_tier_rows(policy)),
            *_table(_level_rows(policy)),
            *_table(_budget_rows(policy)),
        ]
    )


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield rows of a heading, a name and its meaning, in aligned columns."""
    kept = list(rows)
    width = max((len(name) for _, name, _ in kept), default=0)
    for head, name, meaning in kept:
        yield f"{head:<11}{name:<{width}}  {meaning}".rstrip()


def _tier_rows(policy: Policy) -> Iterator[tuple[str, str, str]]:
    for number, tier in enumerate(policy.tiers, 1):
        for i, plugin in enumerate(tier):
            yield (f"tier {number}" if not i else "", plugin.name, _plugin_text(plugin))


def _plugin_text(plugin: TierPlugin) -> str:
    known = plugin.resolved
    words = [known.meaning]
    words += [f"from {known.origin}"] if known.origin else []
    words += [f"{name} = {value}" for name, value in plugin.arguments]
    words += [f"{face.value}: false" for face in Face if face in DEFAULT_FACES - plugin.faces]
    words += [f"{face.value}: true" for face in Face if face in plugin.faces - DEFAULT_FACES]
    return "; ".join(words)


def _level_rows(policy: Policy) -> Iterator[tuple[str, str, str]]:
    for i, name in enumerate(policy.levels):
        yield ("levels" if not i else "", f"{i + 1}. {name}", LEVELS[name].meaning)


def _budget_rows(policy: Policy) -> Iterator[tuple[str, str, str]]:
    budgets = policy.budgets
    yield ("admission", _ADMISSION[policy.admission], "")
    if policy.solver is SolverKind.NONE:
        yield ("solver", "none; the greedy pipeline decides", "")
    else:
        yield ("solver", f"CP-SAT, up to {format_duration_ms(budgets.solve_ms)} a session", "")
    yield ("period", format_duration_ms(budgets.period_ms), "")
    yield ("starvation", f"after {format_duration_ms(budgets.starvation_after_ms)}", "")
    most = f"for up to {count_noun(policy.reservations, 'gang')}" if policy.reservations else "none"
    yield ("reserved", most, "")
