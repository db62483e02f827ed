"""The status of this scheduler's NodeShard: the nodes in use, on which other schedulers rely.

It is written after a session on those nodes, so that no node changes hands while a session decides
on it (Volcano: `pkg/scheduler/cache/shard_coordinator.go`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api.kinds import NODE_SHARD
from optsched.api.serialize import nodeshard_status_patch
from optsched.kube.client.interfaces import Ref
from optsched.kube.scheduler.status import StatusPatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.hypernode import NodeShard
    from optsched.cluster.node_parts import Sharding


def shard_patch(
    sharding: Sharding, shards: Mapping[str, NodeShard], now_ms: int
) -> StatusPatch | None:
    """Return the patch for the status of this scheduler's shard; None if it is up to date.

    sharding: as the last session saw it. shards: objects as the server has them.
    """
    shard, used = shards.get(sharding.name), sharding.nodes
    if shard is None or used is None:
        return None
    wanted = set(shard.wanted)
    in_use, to_remove, to_add = (sorted(part) for part in (used, used - wanted, wanted - used))
    known = (shard.in_use, shard.to_remove, shard.to_add)
    if [sorted(part) for part in known] == [in_use, to_remove, to_add]:
        return None
    body = nodeshard_status_patch(in_use, to_remove, to_add, now_ms)
    return StatusPatch(Ref(NODE_SHARD, "", shard.name), body, "status")
