"""Instance families; an instance file is determined by the family, the seed and the parameters.

Network instances have racks below spines; some gangs require or prefer that all their pods run in
one HyperNode. Queue instances have parent and child queues with deserved resources, capability and
guarantee. Packing instances are vector bin packing problems in `.vbp` files, with one dimension per
resource.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from optsched.study.instances.gang_instances import (
    CPUS,
    GIB,
    GPUS,
    Chance,
    FragmentedGangs,
    HomogeneousGangs,
    Impossible,
    Order,
    Role,
    SharedGpus,
    UnlikeTasks,
    amounts,
    any_priority,
    foreign_pod,
    gang,
    gangs_for,
    gpu_nodes,
    hypernode,
    node,
    node_name,
    priority_classes,
    queue,
    share,
    text_of,
)
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.study.instances.gang_instances import Manifest


RACK, SPINE = 1, 2


@dataclass(frozen=True)
class RacksAndSpines:
    """HyperNodes in two tiers (racks and spines), with some partly allocated nodes.

    Of the gangs with several pods, some must run within one rack, some within one spine, some
    prefer one rack, and some have no network constraint. Gangs with a single pod have no network
    constraint.
    """

    # Number of spines, of racks per spine, and of nodes with 8 GPUs per rack.
    spines: int
    racks: int
    nodes: int
    percent: int = 110  # GPU demand in percent of the idle GPUs.
    soft: int = 40  # Among the gangs with several pods, the percentage that prefers one rack.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
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
                yield foreign_pod(f"other-{name}", share(gpus, 10), name)

        def draw() -> tuple[int, Role, Order]:
            each, size = chance.pick((2, 4, 8)), chance.pick((1, 2, 4), (3, 4, 3))
            more: dict[str, Any] = {}
            if size > 1 and chance.happens(self.soft):
                more = {"networkTopology": {"mode": "soft", "highestTierAllowed": RACK}}
            elif size > 1 and (tier := chance.pick((0, RACK, SPINE), (2, 3, 2))):
                more = {"networkTopology": {"mode": "hard", "highestTierAllowed": tier}}
            order = Order(priority_class=any_priority(chance), more=more)
            return each * size, Role(size, share(each, 10)), order

        yield from gangs_for(free * self.percent // 100, draw)


@dataclass(frozen=True)
class FullCluster:
    """Waiting gangs that may preempt or reclaim capacity, and full nodes with running gangs.

    With one queue, waiting gangs have a higher priority than running gangs. With several queues,
    the waiting gangs belong to the first queue and request its deserved capacity; running gangs of
    the other queues use the entire cluster. A running gang has 1, 2 or 4 tasks on one node. Half of
    the running gangs have a `minMember` equal to their number of tasks, so they can only be evicted
    as a whole. The other half of the running gangs have a `minMember` of 1.
    """

    nodes: int  # Number of nodes with 8 GPUs.
    waiting: int  # Maximum number of waiting gangs.
    queues: int = 1  # Number of queues that share the cluster.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        names = [f"q{q}" for q in range(self.queues)]
        deserved = self.nodes * GPUS // self.queues
        for name in names:
            yield queue(name, deserved={GPU: str(deserved)}, reclaimable=True)
        yield from gpu_nodes(self.nodes)
        holders = names[1:] or names
        number = 0
        for i in range(self.nodes):
            free = GPUS
            while free:
                fitting = [(e, s) for e in (1, 2, 4) for s in (1, 2, 4) if e * s <= free]
                each, size = chance.pick(fitting)
                free -= each * size
                at = (node_name(i),) * size
                least = size if chance.happens(50) else 1
                order = Order(chance.pick(holders), least, "low")
                role = Role(size, share(each, 10), nodes=at)
                yield from gang(f"r{number:03d}", [role], order)
                number += 1
        # The waiting gangs request at most the deserved GPUs of the first queue.
        left = deserved
        order = Order(names[0], priority_class="low" if self.queues > 1 else "high")
        for w in range(self.waiting):
            each, size = chance.pick((2, 4, 8), (2, 3, 3)), chance.pick((1, 2, 4), (3, 3, 1))
            left -= each * size
            if left < 0:
                break
            yield from gang(f"w{w:03d}", [Role(size, share(each, 10))], order)


@dataclass(frozen=True)
class TreeOfQueues:
    """Parent queues that share a cluster, and child queues that share the GPUs of their parent.

    The deserved GPUs of the parent queues add up to all GPUs in the cluster. The capability of a
    queue is 1.5 times its deserved GPUs, and its guarantee is a quarter of its deserved GPUs.
    Demand differs between queues; some queues demand less than their deserved GPUs.
    """

    nodes: int  # Number of nodes with 8 GPUs.
    # Number of parent queues, and number of child queues per parent.
    departments: int
    teams: int
    percent: int = 150  # GPU demand in percent of all GPUs.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        yield from gpu_nodes(self.nodes)
        teams = []
        for d, part in enumerate(_split_evenly(self.nodes * GPUS, self.departments)):
            name = f"d{d}"
            yield queue(name, parent="root", **_limits(part))
            for t, team_gpus in enumerate(_split_evenly(part, self.teams)):
                teams.append((f"{name}-t{t}", chance.pick((1, 2, 4))))
                yield queue(teams[-1][0], parent=name, **_limits(team_gpus))
        names, parts = zip(*teams, strict=True)

        def draw() -> tuple[int, Role, Order]:
            each, size = chance.pick((1, 2, 4, 8), (6, 5, 4, 2)), chance.pick((1, 2, 4), (5, 4, 2))
            order = Order(queue=chance.pick(names, parts), priority_class=any_priority(chance))
            return each * size, Role(size, share(each, 10)), order

        yield from gangs_for(self.nodes * GPUS * self.percent // 100, draw)


def _split_evenly(whole: int, number: int) -> list[int]:
    """Return `number` integers that sum to `whole` and differ by at most 1, the largest first."""
    return [whole // number + (i < whole % number) for i in range(number)]


def _limits(gpus: int) -> dict[str, object]:
    return {
        "deserved": {GPU: str(gpus)},
        "capability": {GPU: str(gpus + gpus // 2)},
        "guarantee": {"resource": {GPU: str(gpus // 4)}} if gpus // 4 else None,
        "reclaimable": True,
    }


@dataclass(frozen=True)
class VectorItems:
    """Items of random sizes, to be packed into bins with capacity 100 in each dimension."""

    # Number of items, and number of item types.
    items: int
    kinds: int
    dimensions: int = 2  # Number of dimensions (resources).
    largest: int = 60  # Maximum size of an item in a dimension; the minimum is 5.

    def text(self, chance: Chance) -> str:
        """Return the content of the `.vbp` file, with one row per item type."""
        numbers = [1] * self.kinds
        for _ in range(self.items - self.kinds):
            numbers[chance.int_below(self.kinds)] += 1
        rows = [
            (*(chance.int_between(5, self.largest) for _ in range(self.dimensions)), number)
            for number in numbers
        ]
        return _text(self.dimensions, 100, rows)


@dataclass(frozen=True)
class CutBins:
    """Items that are cut at random, without waste, from bins of capacity 1 000 in each dimension.

    The items exactly fill the bins from which they were cut, so the number of these bins is
    optimal.
    """

    # Number of bins that are cut into items, and number of items per bin.
    bins: int
    pieces: int
    dimensions: int = 2  # Number of dimensions (resources).

    def text(self, chance: Chance) -> str:
        """Return the content of the `.vbp` file."""
        least = 1000 // (3 * self.pieces)
        spare, items = 1000 - least * self.pieces, list[tuple[int, ...]]()
        for _ in range(self.bins):
            cuts = []
            for _ in range(self.dimensions):
                at = sorted(chance.int_between(0, spare) for _ in range(self.pieces - 1))
                pairs = zip([0, *at], [*at, spare], strict=True)
                cuts.append([b - a + least for a, b in pairs])
            items += zip(*cuts, strict=True)
        return _text(self.dimensions, 1000, [(*item, 1) for item in sorted(items)])


def _text(dimensions: int, capacity: int, rows: Sequence[tuple[int, ...]]) -> str:
    """Format a `.vbp` file in which bins have the same capacity in each dimension."""
    lines = ((dimensions,), (capacity,) * dimensions, (len(rows),), *rows)
    return "".join(f"{' '.join(map(str, line))}\n" for line in lines)


LICENCE: Final = "Apache-2.0"

FAMILIES: Final[Mapping[str, type[Any]]] = {
    "gangs-homogeneous": HomogeneousGangs,
    "gangs-fragmented": FragmentedGangs,
    "queues-hierarchical": TreeOfQueues,
    "topology": RacksAndSpines,
    "victims": FullCluster,
    "heterogeneous": UnlikeTasks,
    "gpus-shared": SharedGpus,
    "vector-packing": VectorItems,
    "vector-packing-cut": CutBins,
    "infeasible": Impossible,
}


class RecipeError(Exception):
    """Raised for an invalid recipe; the message names the accepted values."""


@dataclass(frozen=True)
class Recipe:
    """The family, name, seed and parameters that determine an instance."""

    family: str
    name: str  # Path of the file in the family's folder, without the extension.
    seed: int
    # Parameters of the family, keyed by name; missing parameters take their default values.
    parameters: Mapping[str, int | str]

    @property
    def is_packing(self) -> bool:
        """Whether the recipe describes a vector bin packing instance and not a cluster."""
        return hasattr(self._kind, "text")

    @property
    def path(self) -> str:
        """The path of the instance file, relative to the folder of all instances."""
        return f"{self.family}/{self.name}.{'vbp' if self.is_packing else 'yaml'}"

    @property
    def _kind(self) -> type[Any]:
        if self.family not in FAMILIES:
            raise RecipeError(f"family: {self.family} is not one of {', '.join(FAMILIES)}")
        return FAMILIES[self.family]

    def build_family(self) -> Any:  # noqa: ANN401 an object of any family class
        """Instantiate the family class with the recipe's parameters.

        Raises RecipeError if the family or a parameter does not exist, or if a value has the wrong
        type.
        """
        types = {field.name: field.type for field in fields(self._kind)}
        for name, value in self.parameters.items():
            if name not in types:
                raise RecipeError(f"parameters.{name}: is not one of {', '.join(types)}")
            if type(value).__name__ != types[name]:
                raise RecipeError(f"parameters.{name}: {value!r} is not of type {types[name]}")
        try:
            return self._kind(**self.parameters)
        except (TypeError, ValueError) as e:
            raise RecipeError(f"parameters: {e}") from e

    @property
    def pending(self) -> Mapping[str, str]:
        """The expected reason codes of gangs that cannot start, keyed by gang; often empty."""
        return dict(getattr(self.build_family(), "pending", {}))

    def text(self) -> str:
        """Return the content of the instance file; equal recipes give equal bytes.

        Raises RecipeError if `build_family` rejects the recipe.
        """
        family, chance = self.build_family(), Chance(self.seed)
        if self.is_packing:
            return str(family.text(chance))
        given = ", ".join(f"{name} {value}" for name, value in sorted(self.parameters.items()))
        remark = f"{self.family}: {given}; seed {self.seed}. {LICENCE}."
        return text_of(family.objects(chance), remark)
