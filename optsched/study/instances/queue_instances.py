"""A tree of queues: departments and their teams, with deserved, ceiling and guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.study.instances.gang_instances import (
    GPUS,
    any_priority,
    gpu_nodes,
    priority_classes,
    share,
)
from optsched.study.instances.short_manifests import Order, Role, gang, queue
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.study.instances.random_choice import Chance
    from optsched.study.instances.short_manifests import Manifest


@dataclass(frozen=True)
class TreeOfQueues:
    """Departments share the GPUs of a cluster, and their teams those of each.

    What departments deserve adds up to the cluster; the ceiling of each is half as much again, and
    its guarantee a quarter. So it is with the teams inside of each. Departments and teams ask for
    unlike parts, some for less than they deserve.
    """

    nodes: int  # nodes of 8 GPUs
    # departments, teams: how many, and how many of each
    departments: int
    teams: int
    percent: int = 150  # GPUs asked for, in hundredths of those that there are

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """The manifests."""
        yield from priority_classes()
        yield from gpu_nodes(self.nodes)
        teams = []
        for d, part in enumerate(_split_evenly(self.nodes * GPUS, self.departments)):
            name = f"d{d}"
            yield queue(name, parent="root", **_limits(part))
            for t, mine in enumerate(_split_evenly(part, self.teams)):
                teams.append((f"{name}-t{t}", chance.pick((1, 2, 4))))
                yield queue(teams[-1][0], parent=name, **_limits(mine))
        asked = self.nodes * GPUS * self.percent // 100
        yield from _gangs(chance, asked, teams)


def _split_evenly(whole: int, number: int) -> list[int]:
    """A whole cut into whole parts, the first ones larger by one where it does not go evenly."""
    return [whole // number + (i < whole % number) for i in range(number)]


def _limits(gpus: int) -> dict[str, object]:
    return {
        "deserved": {GPU: str(gpus)},
        "capability": {GPU: str(gpus + gpus // 2)},
        "guarantee": {"resource": {GPU: str(gpus // 4)}} if gpus // 4 else None,
        "reclaimable": True,
    }


def _gangs(chance: Chance, gpus: int, teams: list[tuple[str, int]]) -> Iterator[Manifest]:
    names, parts = [name for name, _ in teams], [part for _, part in teams]
    number = 0
    while gpus > 0:
        each, size = chance.pick((1, 2, 4, 8), (6, 5, 4, 2)), chance.pick((1, 2, 4), (5, 4, 2))
        order = Order(queue=chance.pick(names, parts), priority_class=any_priority(chance))
        yield from gang(f"g{number:03d}", [Role(size, share(each, 10))], order)
        gpus -= each * size
        number += 1
