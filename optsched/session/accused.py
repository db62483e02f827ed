"""Which gangs keep a plan from passing rules of plugins from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.domain.decisions import Allocate, Nominate
from optsched.domain.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.domain.cluster import Snapshot
    from optsched.domain.decisions import Action
    from optsched.rules.base import Violation
    from optsched.rules.ruleset import RuleSet


def accused(
    snapshot: Snapshot, rules: RuleSet, actions: Sequence[Action], found: Sequence[Violation]
) -> dict[str, Reason]:
    """Gangs by key that have to wait so that the others can go on, and why.

    Empty where a rule is broken that comes along: that is an error of ours, and no gang's.
    """
    plugin_of = {a.rule.name: a.plugin for a in rules.active if a.origin}
    if any(v.rule not in plugin_of for v in found):
        return {}
    told: dict[str, Reason] = {}
    for violation in found:
        message = f"plugin {plugin_of[violation.rule]}: {violation.detail}"
        for gang in _meant(snapshot, actions, violation.where):
            told.setdefault(gang, Reason(ReasonCode.PLUGIN, message))
    return told


def _meant(snapshot: Snapshot, actions: Sequence[Action], where: str) -> set[str]:
    """The gangs that get something of what a violation is about."""
    kind, _, name = where.partition(" ")
    placed = [a for a in actions if isinstance(a, Allocate | Nominate)]
    queue_of = {g.key: g.queue for g in snapshot.gangs}
    meant = {
        "gang": {a.gang for a in placed if a.gang == name},
        "task": {a.gang for a in placed if a.task == name},
        "node": {a.gang for a in placed if a.node == name},
        "queue": {a.gang for a in placed if queue_of.get(a.gang) == name},
    }
    return meant.get(kind) or {a.gang for a in placed}
