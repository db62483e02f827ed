"""Which gangs keep a plan from passing rules of plugins from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Nominate
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.session.candidates import named_gangs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.plugins.ruleset import RuleSet


def accused(
    snapshot: Snapshot, rules: RuleSet, actions: Sequence[Action], found: Sequence[Violation]
) -> dict[str, Reason]:
    """Gangs by key that have to wait so that the others can go on, and why.

    Empty where a rule is broken that comes along: that is an error of ours, and no gang's.
    """
    plugin_of = {a.rule.name: a.plugin for a in rules.active if a.origin}
    if any(v.rule not in plugin_of for v in found):
        return {}
    placed = [a for a in actions if isinstance(a, Allocate | Nominate)]
    told: dict[str, Reason] = {}
    for violation in found:
        message = f"plugin {plugin_of[violation.rule]}: {violation.detail}"
        named = named_gangs(snapshot, placed, violation.where) or {a.gang for a in placed}
        for gang in named:
            told.setdefault(gang, Reason(ReasonCode.PLUGIN, message))
    return told
