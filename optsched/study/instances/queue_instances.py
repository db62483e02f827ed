"""A tree of queues: departments and their teams, with deserved, ceiling and guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.study.instances.gang_instances import (
    GPUS,
    any_priority,
    gpu_nodes,
    node_name,
    priority_classes,
    share,
)
from optsched.study.instances.short_manifests import Order, Role, gang, gangs_for, queue
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.study.instances.random_choice import Chance
    from optsched.study.instances.short_manifests import Manifest


@dataclass(frozen=True)
class FullCluster:
    """Nodes full of running gangs, and gangs that may have their room.

    With `queues` 1 those that wait are more important than those that run, in the same queue. With
    more, the first queue waits for what it deserves while the others hold the whole cluster.
    Running gangs have 1, 2 or 4 tasks on one node each; half of them need all of their tasks, so
    that they leave whole, and the others only one.
    """

    nodes: int  # nodes of 8 GPUs
    waiting: int  # gangs that wait
    queues: int = 1  # how many queues share the cluster

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """The manifests."""
        yield from priority_classes()
        names = [f"q{q}" for q in range(self.queues)]
        due = {GPU: str(self.nodes * GPUS // self.queues)}
        for name in names:
            yield queue(name, deserved=due, reclaimable=True)
        yield from gpu_nodes(self.nodes)
        holders = names[1:] or names
        number = 0
        for i in range(self.nodes):
            for each, size in _contents(chance):
                at = (node_name(i),) * size
                least = size if chance.happens(50) else 1
                order = Order(chance.pick(holders), least, "low")
                role = Role(size, share(each, 10), nodes=at)
                yield from gang(f"r{number:03d}", [role], order)
                number += 1
        yield from self._waiting_gangs(chance, names[0], self.nodes * GPUS // self.queues)

    def _waiting_gangs(self, chance: Chance, queue: str, due: int) -> Iterator[Manifest]:
        """Gangs that wait; together no more than a queue can get."""
        priority = "low" if self.queues > 1 else "high"
        for w in range(self.waiting):
            each, size = chance.pick((2, 4, 8), (2, 3, 3)), chance.pick((1, 2, 4), (3, 3, 1))
            due -= each * size
            if due < 0:
                return
            order = Order(queue, priority_class=priority)
            yield from gang(f"w{w:03d}", [Role(size, share(each, 10))], order)


def _contents(chance: Chance) -> Iterator[tuple[int, int]]:
    """GPUs a task and tasks of running gangs that fill a node."""
    left = GPUS
    while left:
        fitting = [(e, s) for e in (1, 2, 4) for s in (1, 2, 4) if e * s <= left]
        each, size = chance.pick(fitting)
        left -= each * size
        yield each, size


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
    names, parts = zip(*teams, strict=True)

    def draw() -> tuple[int, Role, Order]:
        each, size = chance.pick((1, 2, 4, 8), (6, 5, 4, 2)), chance.pick((1, 2, 4), (5, 4, 2))
        order = Order(queue=chance.pick(names, parts), priority_class=any_priority(chance))
        return each * size, Role(size, share(each, 10)), order

    return gangs_for(gpus, draw)
