"""Status patches that the scheduler writes, with Volcano's field names.

The patches are JSON merge patches (RFC 7386). They contain every count, even zero, because a count
that drops to zero must overwrite the stored count. A null value removes a key.
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
    """Return a condition as JSON fields; empty fields are omitted, as with Go's `omitempty`."""
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
    """Return the patch that sets a queue's allocated amounts and PodGroup counts per phase.

    `allocated` maps resources to amounts in base units. `previous` holds the resources in the
    stored status; the patch removes those that are not in `allocated`.
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
    """Return the patch that sets a NodeShard's status; it applies to the status subresource."""
    return {
        "status": {
            "nodesInUse": in_use,
            "nodesToRemove": to_remove,
            "nodesToAdd": to_add,
            "lastUpdateTime": format_time(now_ms),
        }
    }
