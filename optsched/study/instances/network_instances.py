"""Racks below spines, and gangs that have to be or want to be close together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.study.instances.gang_instances import (
    CPUS,
    GIB,
    GPUS,
    any_priority,
    priority_classes,
    share,
)
from optsched.study.instances.short_manifests import (
    Order,
    Role,
    amounts,
    gangs_for,
    hypernode,
    node,
    stranger,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.study.instances.random_choice import Chance
    from optsched.study.instances.short_manifests import Manifest

RACK, SPINE = 1, 2


@dataclass(frozen=True)
class RacksAndSpines:
    """HyperNodes of two tiers; some nodes are in use.

    Of the gangs that ask something of the network some have to be in one rack, some in one spine,
    and some would like to be in one rack.
    """

    # spines, racks, nodes: how many spines, racks of each, and nodes of 8 GPUs in a rack
    spines: int
    racks: int
    nodes: int
    percent: int = 110  # GPUs asked for, in hundredths of those that are free
    soft: int = 40  # gangs in hundred that would only like to be close, of those that ask

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """The manifests."""
        yield from priority_classes()
        names = []
        for s in range(self.spines):
            racks = [f"s{s}-r{r}" for r in range(self.racks)]
            for rack in racks:
                inside = [f"{rack}-n{i}" for i in range(self.nodes)]
                names += inside
                yield from (node(each, amounts(CPUS, GIB, GPUS)) for each in inside)
                yield hypernode(rack, RACK, "rack", inside)
            yield hypernode(f"s{s}", SPINE, "spine", racks)
        free = len(names) * GPUS
        for name in names:
            if chance.happens(25):
                gpus = chance.pick((2, 4, 8))
                free -= gpus
                yield stranger(f"other-{name}", share(gpus, 10), name)

        def draw() -> tuple[int, Role, Order]:
            each, size = chance.pick((2, 4, 8)), chance.pick((1, 2, 4), (3, 4, 3))
            more = self._preferred_tier(chance) if size > 1 else {}
            order = Order(priority_class=any_priority(chance), more=more)
            return each * size, Role(size, share(each, 10)), order

        yield from gangs_for(free * self.percent // 100, draw)

    def _preferred_tier(self, chance: Chance) -> dict[str, Any]:
        if chance.happens(self.soft):
            return {"networkTopology": {"mode": "soft", "highestTierAllowed": RACK}}
        tier = chance.pick((0, RACK, SPINE), (2, 3, 2))
        return {"networkTopology": {"mode": "hard", "highestTierAllowed": tier}} if tier else {}
