"""Selectors of devices, evaluated before anything is decided, within the steps of one session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.dra_devices import evaluate_selectors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.dra_devices import DeviceNeed
    from optsched.cluster.snapshot import Snapshot


def with_verdicts(snapshot: Snapshot) -> Snapshot:
    """The snapshot without requests whose selectors cost too much for one session.

    The very same where none is.
    """
    devices = snapshot.devices
    if not devices.on_node and not devices.elsewhere:
        return snapshot
    found = evaluate_selectors(devices, _pending_device_needs(snapshot))
    return snapshot if found is devices else replace(snapshot, devices=found)


def _pending_device_needs(snapshot: Snapshot) -> Iterator[tuple[str, DeviceNeed]]:
    """Unallocated requests of claims of pods, with their namespaces, each once."""
    claims = snapshot.devices.claims
    seen: set[tuple[str, object]] = set()
    for gang in snapshot.gangs:
        namespace = gang.key.partition("/")[0]
        for task in gang.tasks:
            parts = (namespace, (task.shape.devices, task.device_claims))
            if parts in seen or not any(parts[1]):
                continue
            seen.add(parts)
            named = (claims[key] for key in task.device_claims if key in claims)
            asks = [*task.shape.devices, *(c.request for c in named if c.allocation is None)]
            yield from ((namespace, need) for ask in asks for need in ask.needs)
