"""NodeShards of the API as shards of the domain, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optsched.cluster.node_shards import Shard, Sharding, ShardMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.nodeshard import NodeShard

_MODES = [mode.value for mode in ShardMode]


def shard_of(shard: NodeShard) -> Shard:
    """The shard that an object stands for."""
    return Shard(shard.name, tuple(sorted(set(shard.wanted))), tuple(sorted(set(shard.in_use))))


def with_shards(asked: Sharding, found: Iterable[NodeShard]) -> Sharding:
    """What is asked for, with the shards that there are."""
    shards = sorted(map(shard_of, found), key=lambda shard: shard.name)
    return replace(asked, shards=tuple(shards))


def sharding_fields(sharding: Sharding) -> dict[str, Any]:
    """What the dump of a snapshot says about sharding; nothing where there is none."""
    if sharding.mode is ShardMode.NONE:
        return {}
    return {"sharding": {"mode": sharding.mode.value, "name": sharding.name}}


def read_sharding(dump: Mapping[str, Any]) -> Sharding | None:
    """What the dump of a snapshot says about sharding; None where that has no reading."""
    given = dump.get("sharding") or {}
    if not isinstance(given, dict):
        return None
    mode, name = given.get("mode", ShardMode.NONE.value), given.get("name", "")
    return Sharding(ShardMode(mode), name) if mode in _MODES and isinstance(name, str) else None
