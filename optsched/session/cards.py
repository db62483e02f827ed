"""Which shared GPUs the tasks of a plan get: told to device plugins when they are bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.domain.decisions import Allocate
from optsched.rules.deviceshare import DeviceShare
from optsched.rules.world import World

if TYPE_CHECKING:
    from optsched.domain.cluster import Snapshot
    from optsched.domain.decisions import Action
    from optsched.rules.ruleset import RuleSet


def with_cards(
    snapshot: Snapshot, actions: tuple[Action, ...], rules: RuleSet
) -> tuple[Action, ...]:
    """The actions with the cards of tasks that ask for some, if the plugin is on."""
    rule = next((a.rule for a in rules.active if isinstance(a.rule, DeviceShare)), None)
    cards = {} if rule is None else rule.deal(World(snapshot, actions))
    if not cards:
        return actions
    return tuple(
        replace(a, cards=cards[a.task]) if isinstance(a, Allocate) and a.task in cards else a
        for a in actions
    )
