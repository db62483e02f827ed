"""The configuration of a scheduler: actions, rules in tiers, levels, solver and budgets.

A policy is plain data. The loaders of this room make it; sessions only read it.
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
"""Gangs that have a reservation at once, unless a model says otherwise."""


class Admission(Enum):
    """The form of the level `admission`: one level a priority, or one for all, weighted by it."""

    BY_PRIORITY = "priority"
    BY_WEIGHT = "weight"


class SolverKind(Enum):
    """The solver that improves the greedy plan."""

    CPSAT = "cpsat"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long things may take.

    Attributes
    ----------
    solve_ms
        Wall time of the solver in a session.
    period_ms
        From the start of one session to the start of the next.
    starvation_after_ms
        Gangs that have waited for longer precede the others of their priority.
    deterministic_s
        Solver work for each level, in CP-SAT's deterministic seconds, where no clock is read.

    """

    solve_ms: int = 400
    period_ms: int = 1000
    starvation_after_ms: int = 60_000
    deterministic_s: float = 10.0


@dataclass(frozen=True, slots=True)
class TierPlugin:
    """A plugin as a tier names it, with the arguments given and the switches left on."""

    name: str
    arguments: tuple[tuple[str, Value], ...] = ()
    faces: frozenset[Face] = DEFAULT_FACES
    plugin: Plugin | None = None
    """The plugin itself where it does not come along."""

    @property
    def resolved(self) -> Plugin:
        """The plugin of this name."""
        return self.plugin or PLUGINS[self.name]


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy, checked and ready for sessions.

    Attributes
    ----------
    name
        Of the model, or of the file.
    source
        The file it was read from, or `model NAME` for those that are shipped.
    meaning
        Its purpose, in a sentence; empty without one.
    actions
        In the order in which they run.
    tiers
        The plugins as they were named; `rules` is made from them.
    rules
        In the order in which they are asked, with plugin, tier and faces.
    levels
        Of the objective, the most important first; see `LEVELS` in `optsched.plugins.objectives`.
    admission, solver, budgets
        See their types.
    reservations
        Gangs at most that have waited for too long and for which room is kept from an instant on;
        0 for none.
    action_arguments
        The arguments of single actions in Volcano's `configurations`.
    proposers
        The actions of a user among them, made for their arguments.
    metrics
        Volcano's section of that name, by dotted field; may hold a password.
    warnings
        Settings that are likely not meant as written.
    plugin_files
        Path and text of the files with its plugins.

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
    """The same policy, decided by the greedy pipeline alone, as in Volcano: nothing reserved."""
    return replace(policy, solver=SolverKind.NONE, reservations=0)


def with_solver(policy: Policy, solver: SolverKind | str | None) -> Policy:
    """The same policy with another solver; None for its own."""
    if solver is None:
        return policy
    kind = SolverKind(solver)
    return without_solver(policy) if kind is SolverKind.NONE else replace(policy, solver=kind)


def build_rules(
    tiers: Iterable[Sequence[TierPlugin]], metrics: Iterable[tuple[str, str]] = ()
) -> RuleSet:
    """The rules that plugins bring, in their order; tiers count from 1.

    Arguments have been checked before. `metrics` names the source of measured load.
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
    """What a plugin is built from: its arguments, and switches that its rules read."""
    switches = {f.value: f in plugin.faces for f in (Face.HIERARCHY, Face.RECLAIMABLE)}
    return {**dict(plugin.arguments), **switches}


# --- in words ------------------------------------------------------------------------------------

_ADMISSION = {
    Admission.BY_PRIORITY: "one level for each priority, the highest first",
    Admission.BY_WEIGHT: "one level, gangs weighted by priority and dominant resource",
}


def describe(policy: Policy) -> str:
    """A policy in words: its actions, its rules, and its levels in order."""
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
    """Rows of a heading, a name and its meaning, aligned."""
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
        yield ("solver", "none, the greedy pipeline decides", "")
    else:
        yield ("solver", f"CP-SAT, up to {format_duration_ms(budgets.solve_ms)} a session", "")
    yield ("period", format_duration_ms(budgets.period_ms), "")
    yield ("starvation", f"after {format_duration_ms(budgets.starvation_after_ms)}", "")
    most = f"for up to {count_noun(policy.reservations, 'gang')}" if policy.reservations else "none"
    yield ("reserved", most, "")
