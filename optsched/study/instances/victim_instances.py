"""Full clusters in which some pods have to leave: preempt, reclaim, and as few as possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.study.instances.gang_instances import (
    GPUS,
    gpu_nodes,
    node_name,
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
