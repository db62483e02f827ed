"""Which parts of their nodes the tasks of a plan get: recorded when they are bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate
from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.deviceshare import DeviceShare
from optsched.plugins.devices.numa_aware import NumaAware
from optsched.plugins.verification.world import World

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action
    from optsched.cluster.dra_devices import DeviceGrant
    from optsched.cluster.gpu_shares import GpuShare
    from optsched.cluster.node_parts import NumaPart
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.ruleset import RuleSet


def with_cards(
    snapshot: Snapshot, actions: tuple[Action, ...], rules: RuleSet
) -> tuple[Action, ...]:
    """The actions with the parts of their nodes that tasks get, where rules assign parts."""
    world = World(snapshot, actions)
    shared_gpus: dict[str, tuple[GpuShare, ...]] = {}
    devices: dict[str, tuple[DeviceGrant, ...]] = {}
    numa: dict[str, tuple[NumaPart, ...]] = {}
    for active in rules.active:
        if isinstance(active.rule, DeviceShare):
            shared_gpus = active.rule.allocate_devices(world)
        elif isinstance(active.rule, DeviceClaims):
            devices = active.rule.grant_devices(world)
        elif isinstance(active.rule, NumaAware):
            numa = active.rule.plan_cells(world)
    if not shared_gpus and not devices and not numa:
        return actions
    return tuple(
        replace(
            a,
            shared_gpus=shared_gpus.get(a.task, ()),
            devices=devices.get(a.task, ()),
            numa=numa.get(a.task, ()),
        )
        if isinstance(a, Allocate)
        else a
        for a in actions
    )
