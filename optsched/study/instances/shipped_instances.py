"""Which instances are shipped: their recipes, and the models whose best plans are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from optsched.study.instances.gang_instances import CASES
from optsched.study.instances.instance_families import Recipe

PACKING: Final = "vector-packing"
"""Stands for a model with the fewest bins."""

_WEIGHTS, _VOLCANO, _FRAGMENTS = "max-throughput", "volcano-default", "min-fragmentation"
_CARDS = "gpus-shared/model.yaml"
_QUEUES, _TOPOLOGY = "capacity-hierarchical", "topology-first"

MOST_BYTES: Final = 60_000
"""Files that are larger are made when they are needed."""


@dataclass(frozen=True)
class Shipped:
    """An instance and the models that it is solved with."""

    recipe: Recipe
    models: tuple[str, ...]


def _instances_of_family(
    family: str, models: tuple[str, ...], **sizes: dict[str, int | str]
) -> tuple[Shipped, ...]:
    named = ((name.replace("_", "-"), parameters) for name, parameters in sizes.items())
    return tuple(Shipped(Recipe(family, name, 1, given), models) for name, given in named)


SHIPPED: Final[tuple[Shipped, ...]] = (
    *_instances_of_family(
        "gangs-homogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"nodes": 4},
        small={"nodes": 16},
        medium={"nodes": 48},
        large={"nodes": 125},
    ),
    *_instances_of_family(
        "gangs-fragmented",
        (_WEIGHTS, _VOLCANO, _FRAGMENTS),
        tiny={"nodes": 6},
        small={"nodes": 16},
    ),
    *_instances_of_family(
        "gangs-fragmented", (_WEIGHTS, _VOLCANO), medium={"nodes": 48}, large={"nodes": 125}
    ),
    *_instances_of_family(
        "queues-hierarchical",
        (_QUEUES,),
        tiny={"nodes": 4, "departments": 2, "teams": 2},
        small={"nodes": 12, "departments": 3, "teams": 2},
        medium={"nodes": 32, "departments": 3, "teams": 3},
        large={"nodes": 125, "departments": 4, "teams": 4},
    ),
    *_instances_of_family(
        "topology",
        (_TOPOLOGY,),
        tiny={"spines": 2, "racks": 2, "nodes": 2},
        small={"spines": 2, "racks": 2, "nodes": 4},
        medium={"spines": 2, "racks": 4, "nodes": 4},
        large={"spines": 4, "racks": 4, "nodes": 8},
    ),
    *_instances_of_family(
        "victims",
        (_VOLCANO,),
        preempt_tiny={"nodes": 3, "waiting": 2},
        preempt_small={"nodes": 8, "waiting": 6},
        preempt_medium={"nodes": 32, "waiting": 20},
        preempt_large={"nodes": 125, "waiting": 30},
    ),
    *_instances_of_family(
        "victims",
        (_QUEUES,),
        reclaim_tiny={"nodes": 4, "waiting": 3, "queues": 2},
        reclaim_small={"nodes": 9, "waiting": 6, "queues": 3},
        reclaim_medium={"nodes": 40, "waiting": 20, "queues": 3},
    ),
    *_instances_of_family(
        "heterogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"gpu_nodes": 2, "cpu_nodes": 2, "gangs": 5},
        small={"gpu_nodes": 6, "cpu_nodes": 3, "gangs": 12},
        medium={"gpu_nodes": 24, "cpu_nodes": 12, "gangs": 60},
    ),
    *_instances_of_family(
        "gpus-shared",
        (_CARDS,),
        tiny={"nodes": 2, "cards": 2},
        small={"nodes": 6, "cards": 4},
        medium={"nodes": 16, "cards": 8},
    ),
    *_instances_of_family(
        "vector-packing",
        (PACKING,),
        tiny={"items": 20, "kinds": 6},
        small={"items": 60, "kinds": 12},
        medium={"items": 200, "kinds": 30, "dimensions": 3},
    ),
    *_instances_of_family(
        "vector-packing-cut",
        (PACKING,),
        tiny={"bins": 6, "pieces": 3},
        small={"bins": 20, "pieces": 3},
        medium={"bins": 20, "pieces": 3, "dimensions": 3},
    ),
    *(
        Shipped(Recipe("infeasible", case, 1, {"case": case, "nodes": 8}), (_TOPOLOGY,))
        for case in CASES
    ),
    *_instances_of_family("infeasible", (_TOPOLOGY,), pairs_medium={"case": "pairs", "nodes": 64}),
)
