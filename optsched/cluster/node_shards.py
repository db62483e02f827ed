"""Shards of the cluster: nodes that several schedulers have shared out among themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Final


class ShardMode(StrEnum):
    """What a shard means to its scheduler; the values are Volcano's."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Shard:
    """Nodes that one scheduler is to have, and those that it says it uses; in name order."""

    name: str
    wanted: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sharding:
    """Which shard is ours and what that means.

    Attributes
    ----------
    name
        The shard of this scheduler.
    shards
        All shards, in name order.
    """

    mode: ShardMode = ShardMode.NONE
    name: str = ""
    shards: tuple[Shard, ...] = ()

    @property
    def own_shard(self) -> Shard | None:
        """The shard of this scheduler; None where it has none."""
        if self.mode is ShardMode.NONE:
            return None
        return next((shard for shard in self.shards if shard.name == self.name), None)

    @property
    def is_missing(self) -> bool:
        """Whether a shard is asked for that does not exist."""
        return self.mode is not ShardMode.NONE and self.own_shard is None

    @cached_property
    def nodes(self) -> frozenset[str] | None:
        """Names of the nodes in our shard that no other shard still uses.

        None where all nodes are ours alike: without sharding, and without a shard of our name.
        """
        if self.own_shard is None:
            return None
        others = (shard.in_use for shard in self.shards if shard.name != self.name)
        return frozenset(self.own_shard.wanted).difference(chain.from_iterable(others))

    def excludes(self, node: str) -> bool:
        """Whether nothing may be placed on a node or evicted from it."""
        return self.mode is ShardMode.HARD and self.nodes is not None and node not in self.nodes


NO_SHARDING: Final = Sharding()
