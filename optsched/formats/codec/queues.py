"""Convert Volcano Queues, with their annotations, to `snapshot.Queue` objects and back.

Annotations hold the overuse tolerance (`volcano.sh/overuse-tolerance`), the limits per node group,
and the past usage (`optsched.io/usage`). An example of a usage annotation is
`{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"nvidia.com/gpu": 7200.0}}`. `resourceSeconds`
holds base units (thousandths of CPUs, bytes, counts) times seconds, as of the time `at`. Reading
and writing preserve `resourceSeconds` exactly.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from optsched.api import wellknown
from optsched.api.queue import DequeueStrategy
from optsched.cluster.amounts import Usage, amounts
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import (
    DEFAULT_QUEUE,
    NO_GROUPS,
    ROOT_QUEUE,
    NodeGroups,
    Queue,
    QueueState,
    Tolerance,
)
from optsched.formats.codec.annotations import (
    PROBLEM,
    WAITING_SINCE,
    read_reason,
    time_text,
    without_annotations,
)
from optsched.formats.files.diagnostics import join_messages
from optsched.units import (
    FieldError,
    QuantityError,
    TimestampError,
    parse_amount,
    parse_resource_list,
    parse_time_ms,
)
from optsched.units.quantity import parse_decimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.queue import Queue as ApiQueue
    from optsched.cluster.amounts import Amounts

USAGE: Final = "optsched.io/usage"
PPM: Final = 1_000_000

_DECODED_ANNOTATIONS: Final = frozenset({PROBLEM, WAITING_SINCE, wellknown.SUBMITTER, USAGE})
_TOLERANCE_EXAMPLE: Final = (
    "write 0, a fraction such as 0.2 or 20%, or amounts such as cpu=4,nvidia.com/gpu=2"
)
_LIMITS_EXAMPLE: Final = 'write {"GROUP": {"cpu": "3", "memory": "8Gi"}}'
_AT: Final = "at"
_SECONDS: Final = "resourceSeconds"
_USAGE_ACCEPTED: Final = (
    "is not a valid usage and is ignored: write one such as "
    '{"at": "2026-11-21T05:38:00Z", "resourceSeconds": {"nvidia.com/gpu": 7200.0}}'
)

_Limits = tuple[tuple[str, "Amounts"], ...]


def queue_of(queue: ApiQueue) -> Queue:
    """Convert a Queue to a `snapshot.Queue`; a queue with invalid fields accepts no jobs.

    If a queue states no deserved amount of a resource, it deserves its guarantee of this resource.
    """
    tolerated, tolerance_error = tolerance(queue)
    problem = read_reason(queue.meta.annotations)
    message = join_messages(queue.errors) if queue.errors else tolerance_error
    if message:
        problem = Reason(ReasonCode.INVALID_QUEUE, message)
    return Queue(
        name=queue.name,
        weight=queue.weight,
        capability=amounts(queue.capability) or None,
        deserved=amounts(queue.effective_deserved),
        guarantee=amounts(queue.guarantee),
        reclaimable=queue.reclaimable,
        parent=queue.parent or ROOT_QUEUE,
        priority=queue.priority,
        created_ms=queue.meta.creation_ms,
        state=QueueState(queue.status.state.value),
        is_fifo=queue.dequeue_strategy is DequeueStrategy.FIFO,
        annotations=without_annotations(queue.meta.annotations, _DECODED_ANNOTATIONS),
        node_groups=node_groups(queue),
        tolerance=tolerated,
        problem=problem,
    )


def with_builtin_queues(queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """Return the queues sorted by name, with `default` and `root` added if they are missing."""
    builtin = (Queue(DEFAULT_QUEUE), Queue(ROOT_QUEUE, reclaimable=False))
    found = {queue.name: queue for queue in (*builtin, *queues)}
    return tuple(found[name] for name in sorted(found))


# --- tolerance of overuse -------------------------------------------------------------------------


def tolerance(queue: ApiQueue) -> tuple[Tolerance | None, str]:
    """Return a queue's overuse tolerance (None if unset or invalid), and an error message."""
    text = queue.overuse_tolerance.strip()
    if not text:
        return None, ""
    found, number = None, parse_decimal(text.removesuffix("%"))
    if "=" in text:
        pairs = [pair.partition("=") for pair in text.split(",")]
        with suppress(QuantityError):
            given = {n.strip(): parse_amount(n.strip(), amount.strip()) for n, _, amount in pairs}
            found = None if "" in given else Tolerance(amounts=amounts(given))
    elif number is not None:
        part = float(number) / (100 if text.endswith("%") else 1)
        found = Tolerance(round(part * PPM)) if 0 <= part < PPM else None
    if found is None:
        name = f"annotation {wellknown.OVERUSE_TOLERANCE}"
        return None, f"{name}: {text!r} cannot be read: {_TOLERANCE_EXAMPLE}"
    return found, ""


# --- node groups ----------------------------------------------------------------------------------


def node_groups(queue: ApiQueue) -> NodeGroups:
    """Read the node groups of a queue.

    Invalid limits become the `problem` of the node groups and forbid every node, as in Volcano.
    """
    limits, problem = _read_limits(queue.meta.annotations)
    affinity = queue.affinity.node_group_affinity
    anti_affinity = queue.affinity.node_group_anti_affinity
    found = NodeGroups(
        required=affinity.required,
        preferred=affinity.preferred,
        excluded=anti_affinity.required,
        last_resort=anti_affinity.preferred,
        limits=limits,
        problem=problem,
    )
    return NO_GROUPS if found == NO_GROUPS else found


def _read_limits(annotations: Mapping[str, str]) -> tuple[_Limits, str]:
    text = annotations.get(wellknown.NODEGROUP_RESOURCE_LIMITS)
    if text is None:
        return (), ""
    name = f"annotation {wellknown.NODEGROUP_RESOURCE_LIMITS}"
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as e:
        return (), f"{name} is not JSON ({e}): {_LIMITS_EXAMPLE}"
    if not isinstance(tree, dict):
        return (), f"{name} is not a mapping: {_LIMITS_EXAMPLE}"
    errors: list[str] = []
    limits: list[tuple[str, Amounts]] = []
    for group, listed in sorted(tree.items()):
        found, invalid = parse_resource_list(listed, group)
        errors += map(str, invalid)
        limits.append((group, amounts(found)))
    return ((), f"{name}: {'; '.join(errors)}") if errors else (tuple(limits), "")


def affinity_fields(groups: NodeGroups) -> dict[str, Any]:
    """Return the field `spec.affinity` of a queue; empty if the queue has no node groups."""
    sides = {
        "nodeGroupAffinity": (groups.required, groups.preferred),
        "nodeGroupAntiAffinity": (groups.excluded, groups.last_resort),
    }
    affinity: dict[str, Any] = {}
    for name, (required, preferred) in sides.items():
        terms = {
            "requiredDuringSchedulingIgnoredDuringExecution": list(required),
            "preferredDuringSchedulingIgnoredDuringExecution": list(preferred),
        }
        if required or preferred:
            affinity[name] = {key: listed for key, listed in terms.items() if listed}
    return affinity


# --- past usage -----------------------------------------------------------------------------------


def usage_text(usage: Usage) -> str:
    """Format a queue's usage for its annotation."""
    return json.dumps({_AT: time_text(usage.at_ms), _SECONDS: dict(usage.seconds)})


def read_usage(annotations: Mapping[str, str]) -> tuple[Usage | None, tuple[FieldError, ...]]:
    """Return the usage in annotations (None if missing or invalid), and all errors in it."""
    text = annotations.get(USAGE)
    if text is None:
        return None, ()
    try:
        found = json.loads(text)
        pairs = [(name, float(amount)) for name, amount in sorted(found[_SECONDS].items())]
        if all(math.isfinite(amount) and amount >= 0 for _, amount in pairs):
            return Usage(tuple(pairs), parse_time_ms(found[_AT])), ()
    except (
        *(ValueError, TypeError, AttributeError, KeyError, TimestampError),
        *(OverflowError, RecursionError),
    ):
        pass
    return None, (FieldError(f"metadata.annotations[{USAGE}]", text, _USAGE_ACCEPTED),)
