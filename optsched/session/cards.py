"""Which shared GPUs and devices the tasks of a plan get: told to whoever hands them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.domain.decisions import Allocate
from optsched.rules.device_claims import DeviceClaims
from optsched.rules.deviceshare import DeviceShare
from optsched.rules.world import World

if TYPE_CHECKING:
    from optsched.domain.cards import CardUse
    from optsched.domain.cluster import Snapshot
    from optsched.domain.decisions import Action
    from optsched.domain.devices import DeviceGrant
    from optsched.rules.ruleset import RuleSet


def with_cards(
    snapshot: Snapshot, actions: tuple[Action, ...], rules: RuleSet
) -> tuple[Action, ...]:
    """The actions with the cards and devices of tasks that ask for some, as far as rules deal."""
    world = World(snapshot, actions)
    cards: dict[str, tuple[CardUse, ...]] = {}
    devices: dict[str, tuple[DeviceGrant, ...]] = {}
    for active in rules.active:
        if isinstance(active.rule, DeviceShare):
            cards = active.rule.deal(world)
        elif isinstance(active.rule, DeviceClaims):
            devices = active.rule.deal(world)
    if not cards and not devices:
        return actions
    return tuple(
        replace(a, cards=cards.get(a.task, ()), devices=devices.get(a.task, ()))
        if isinstance(a, Allocate)
        else a
        for a in actions
    )
