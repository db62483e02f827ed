"""Status patches that the scheduler writes, with Volcano's field names.

The patches are JSON merge patches (RFC 7386). The patches contain every count, also a zero, because
a count that drops to zero must overwrite the stored count. A key to be removed is written as null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.units import format_resource_list, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.podgroup import PodGroupCondition, PodGroupPhase
    from optsched.api.queue import QueueCounts


def podgroup_status_patch(
    phase: PodGroupPhase,
    conditions: Iterable[PodGroupCondition],
    *,
    running: int,
    succeeded: int,
    failed: int,
) -> dict[str, Any]:
    """Return the patch that sets a PodGroup's status; the kind has no status subresource."""
    return {
        "status": {
            "phase": phase.value,
            "conditions": [condition_fields(each) for each in conditions],
            "running": running,
            "succeeded": succeeded,
            "failed": failed,
        }
    }


def condition_fields(condition: PodGroupCondition) -> dict[str, Any]:
    """Return the fields of a condition for storage; empty fields are omitted, as in Go."""
    fields = {
        "type": condition.type,
        "status": condition.status,
        "transitionID": condition.transition_id,
        "lastTransitionTime": ""
        if condition.transition_ms is None
        else format_time(condition.transition_ms),
        "reason": condition.reason,
        "message": condition.message,
    }
    return {name: value for name, value in fields.items() if value}


def queue_status_patch(
    allocated: Mapping[str, int],
    counts: QueueCounts,
    *,
    previous: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the patch that sets a queue's allocated amounts and its PodGroups in each phase.

    `allocated` holds base units by resource. `previous` holds the resources in the stored status;
    resources that are not in `allocated` are removed.
    """
    removed = dict.fromkeys(sorted(set(previous) - allocated.keys()))
    return {
        "status": {
            "allocated": {**format_resource_list(allocated), **removed},
            "unknown": counts.unknown,
            "pending": counts.pending,
            "running": counts.running,
            "inqueue": counts.inqueue,
            "completed": counts.completed,
        }
    }


def nodeshard_status_patch(
    in_use: list[str], to_remove: list[str], to_add: list[str], now_ms: int
) -> dict[str, Any]:
    """Return the patch of a NodeShard's status subresource with the nodes in use."""
    return {
        "status": {
            "nodesInUse": in_use,
            "nodesToRemove": to_remove,
            "nodesToAdd": to_add,
            "lastUpdateTime": format_time(now_ms),
        }
    }
