"""Nodes whose GPUs are shared by memory and cores, as volcano-vgpu-device-plugin reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.study.instances.gang_instances import any_priority, node_name, priority_classes
from optsched.study.instances.short_manifests import Order, Role, amounts, gang, node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.study.instances.random_choice import Chance
    from optsched.study.instances.short_manifests import Manifest

MIB = 16_384
"""Memory of a GPU."""


@dataclass(frozen=True)
class SharedGpus:
    """Gangs of pods that take a part of one GPU each; more than there is room for.

    A GPU that is free by a half in sum, but by a quarter on two devices each, takes no half.
    """

    # nodes, cards: nodes, and GPUs of 16 GiB on each, which up to ten pods share
    nodes: int
    cards: int
    percent: int = 120  # memory of GPUs asked for, in hundredths of what there is

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """The manifests."""
        yield from priority_classes()
        for i in range(self.nodes):
            yield self._node(node_name(i))
        left = self.nodes * self.cards * MIB * self.percent // 100
        number = 0
        while left > 0:
            mib, size = chance.pick((4, 6, 8, 10, 12)) * 1024, chance.pick((1, 2, 3), (4, 3, 1))
            order = Order(priority_class=any_priority(chance))
            yield from gang(
                f"g{number:03d}",
                [
                    Role(
                        size,
                        {
                            **amounts(2, 8),
                            "volcano.sh/vgpu-number": "1",
                            "volcano.sh/vgpu-memory": str(mib),
                        },
                    )
                ],
                order,
            )
            left -= mib * size
            number += 1

    def _node(self, name: str) -> Manifest:
        cards = "".join(
            f"{name}-gpu-{c},10,{MIB},NVIDIA-Tesla T4,true,hami-core:" for c in range(self.cards)
        )
        offered = {
            **amounts(64, 256),
            "volcano.sh/vgpu-number": str(10 * self.cards),
            "volcano.sh/vgpu-memory": str(MIB * self.cards),
            "volcano.sh/vgpu-cores": str(100 * self.cards),
        }
        made = node(name, offered)
        made["metadata"]["annotations"] = {"volcano.sh/node-vgpu-register": cards}
        return made
