"""Generate benchmark instances with gangs, as manifests of Kubernetes objects.

The tasks of a gang may be equal or different, and the nodes may be idle or partly allocated.
`Chance` draws the same numbers in every version of Python and NumPy, because it uses only
`random.Random.random`. `random.Random.random` returns the same sequence for a seed in all versions
of Python (library reference of `random`, "Notes on Reproducibility").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from optsched.api.wellknown import HOSTNAME, TASK_SPEC
from optsched.cluster.reasons import ReasonCode
from optsched.units import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Manifest = dict[str, Any]
Amounts = dict[str, str]

NAMESPACE: Final = "jobs"

_GROUP: Final = "scheduling.k8s.io/group-name"
_VOLCANO: Final = "scheduling.volcano.sh/v1beta1"


def amounts(cpu: int, gib: int, gpus: int = 0) -> Amounts:
    """Return a Kubernetes resource list of CPUs, memory in GiB and GPUs."""
    found = {"cpu": str(cpu), "memory": f"{gib}Gi"}
    return {**found, GPU: str(gpus)} if gpus else found


def node(name: str, offered: Amounts) -> Manifest:
    """Return a Node with the allocatable resources `offered`."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name}},
        "status": {"allocatable": {**offered, "pods": "110"}},
    }


def queue(name: str, **spec: object) -> Manifest:
    """Return a Queue with the given spec fields; fields with the value None are omitted."""
    kept = {field: value for field, value in spec.items() if value is not None}
    return {"apiVersion": _VOLCANO, "kind": "Queue", "metadata": {"name": name}, "spec": kept}


def hypernode(name: str, tier: int, tier_name: str, members: Iterable[str]) -> Manifest:
    """Return a HyperNode; its members are nodes at tier 1 and HyperNodes at higher tiers."""
    kind = "Node" if tier == 1 else "HyperNode"
    listed = [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in members]
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, "tierName": tier_name, "members": listed},
    }


class Role(NamedTuple):
    """A group of equal pods in a gang, with their number, request and other settings."""

    number: int
    request: Amounts
    name: str = ""
    nodes: tuple[str, ...] = ()  # Node of each running pod; empty if the pods are pending.
    more: Mapping[str, Any] = {}  # Additional pod spec fields.
    labels: Mapping[str, str] = {}


class Order(NamedTuple):
    """Settings of a PodGroup."""

    queue: str = "default"
    least: int | None = None  # `minMember`; None stands for the number of pods.
    priority_class: str = ""  # Name of the PriorityClass; may be empty.
    more: Mapping[str, Any] = {}  # Additional PodGroup spec fields.


def gang(name: str, roles: Iterable[Role], order: Order) -> Iterator[Manifest]:
    """Yield the manifests of a PodGroup and of its pods."""
    roles = tuple(roles)
    least = order.least if order.least is not None else sum(role.number for role in roles)
    named = {role.name: role.number for role in roles if role.name}
    runs = all(role.nodes for role in roles)
    priority = {"priorityClassName": order.priority_class} if order.priority_class else {}
    minimums = {"minTaskMember": named} if named else {}
    yield {
        "apiVersion": _VOLCANO,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minMember": least, "queue": order.queue, **priority, **minimums, **order.more},
        "status": {"phase": "Running" if runs else "Inqueue"},
    }
    number = 0
    for role in roles:
        labels = {**({TASK_SPEC: role.name} if role.name else {}), **role.labels}
        for i in range(role.number):
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": NAMESPACE,
                    "annotations": {_GROUP: name},
                    **({"labels": labels} if labels else {}),
                },
                "spec": {
                    "schedulerName": "volcano",
                    **priority,
                    **({"nodeName": role.nodes[i]} if role.nodes else {}),
                    "containers": [{"name": "main", "resources": {"requests": role.request}}],
                    **role.more,
                },
                "status": {"phase": "Running" if role.nodes else "Pending"},
            }
            number += 1


def gangs_for(amount: int, draw: Callable[[], tuple[int, Role, Order]]) -> Iterator[Manifest]:
    """Yield gangs until their total demand reaches `amount`.

    `draw` returns the demand, the `Role` and the `Order` of the next gang.
    """
    number = 0
    while amount > 0:
        requested, role, order = draw()
        yield from gang(f"g{number:03d}", [role], order)
        amount -= requested
        number += 1


def foreign_pod(name: str, request: Amounts, at: str) -> Manifest:
    """Return a running pod of another scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "others"},
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeName": at,
            "containers": [{"name": "main", "resources": {"requests": request}}],
        },
        "status": {"phase": "Running"},
    }


def text_of(objects: Iterable[Manifest], remark: str) -> str:
    """Return `remark` as a YAML comment, then the objects as a List with one object per line."""
    lines = [
        *(f"# {line}" for line in remark.splitlines()),
        "apiVersion: v1",
        "kind: List",
        "items:",
        *(f"- {json.dumps(each, separators=(', ', ': '))}" for each in objects),
    ]
    return "\n".join([*lines, ""])


Value = TypeVar("Value")


class Chance:
    """A random number generator; its numbers depend only on the seed, not on the Python version."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 random numbers for instances, not for secrets

    def int_below(self, number: int) -> int:
        """Return an integer from 0 to `number` − 1."""
        return int(self._random.random() * number)

    def int_between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, inclusive."""
        return low + self.int_below(high - low + 1)

    def pick(self, values: Sequence[Value], parts: Sequence[int] = ()) -> Value:
        """Return a random value; `parts` holds relative probabilities, empty if they are equal."""
        weights = parts or [1] * len(values)
        at = self.int_below(sum(weights))
        for value, weight in zip(values, weights, strict=True):
            if at < weight:
                return value
            at -= weight
        raise ValueError("there are no values to choose from")

    def happens(self, percent: int) -> bool:
        """Return True with a probability of `percent` percent."""
        return self.int_below(100) < percent


ASKED: Final = "asked"
"""Name of the gang that cannot start."""


class _Case(NamedTuple):
    """A gang that cannot start, and the expected reason code."""

    order: Order
    roles: Callable[[int], list[Role]]
    code: ReasonCode


@dataclass(frozen=True)
class Impossible:
    """A cluster of racks with one gang that cannot start, and other gangs that can start."""

    # Why the gang cannot start: `node`, `cluster`, `ceiling`, `fragments`, `rack`, `label`, `apart`
    # or `pairs`. The cases are explained in `instances/README.md`.
    case: str
    nodes: int  # Number of nodes with 8 GPUs; a rack has four nodes.

    def __post_init__(self) -> None:
        if self.case not in CASES:
            raise ValueError(f"case: {self.case} is not one of {', '.join(CASES)}")

    @property
    def pending(self) -> dict[str, str]:
        """The expected reason code of the gang that cannot start, keyed by the gang's name."""
        return {f"jobs/{ASKED}": CASES[self.case].code.value}

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        yield queue("small", capability={GPU: "4"})
        case = CASES[self.case]
        names = [node_name(i) for i in range(self.nodes)]
        yield from (node(name, amounts(CPUS, GIB, GPUS)) for name in names)
        for r in range(0, self.nodes, 4):
            yield hypernode(f"rack-{r // 4}", 1, "rack", names[r : r + 4])
        used = 4 if self.case in ("fragments", "pairs") else chance.pick((0, 1, 2))
        for i, name in enumerate(names):
            if used:
                yield foreign_pod(f"other-{i}", share(used, 10), name)
        yield from gang(ASKED, case.roles(self.nodes), case.order._replace(priority_class="high"))
        for i in range(self.nodes // 2):
            role = Role(1, share(chance.pick((1, 2)), 10))
            yield from gang(f"g{i:03d}", [role], Order(priority_class="low"))


_RACK: Final = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}


_TERM: Final = {"labelSelector": {"matchLabels": {"app": ASKED}}, "topologyKey": HOSTNAME}
_APART: Final = {
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}}
}


CASES: Final = {
    "node": _Case(Order(), lambda _: [Role(1, share(16, 10))], ReasonCode.IMPOSSIBLE),
    "cluster": _Case(Order(), lambda n: [Role(n + 1, share(8, 10))], ReasonCode.IMPOSSIBLE),
    "ceiling": _Case(
        Order(queue="small"), lambda _: [Role(3, share(2, 10))], ReasonCode.CAPABILITY
    ),
    "fragments": _Case(Order(), lambda _: [Role(1, share(5, 10))], ReasonCode.FRAGMENTED),
    "rack": _Case(Order(more=_RACK), lambda _: [Role(5, share(6, 10))], ReasonCode.TOPOLOGY),
    "label": _Case(
        Order(),
        lambda _: [Role(2, share(1, 10), more={"nodeSelector": {"gpu": "h100"}})],
        ReasonCode.PREDICATES,
    ),
    "apart": _Case(
        Order(),
        lambda n: [Role(n + 1, share(1, 10), more=_APART, labels={"app": ASKED})],
        ReasonCode.IMPOSSIBLE,
    ),
    "pairs": _Case(
        Order(),
        lambda n: [Role(n, share(3, 10), "worker"), Role(1, share(2, 10), "head")],
        ReasonCode.FRAGMENTED,
    ),
}


MIB = 16_384
"""Memory of a GPU in MiB."""


@dataclass(frozen=True)
class SharedGpus:
    """Gangs of pods with one GPU share each; their demand may exceed the memory of all GPUs.

    A GPU share must fit on one GPU. For example, a request for half a GPU fits on neither of two
    GPUs that are three quarters full.
    """

    # Number of nodes, and number of GPUs per node. A GPU has 16 GiB, and up to ten pods may share
    # it.
    nodes: int
    cards: int
    percent: int = 120  # Demand for GPU memory, in percent of the memory of all GPUs.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        offered = {
            **amounts(64, 256),
            "volcano.sh/vgpu-number": str(10 * self.cards),
            "volcano.sh/vgpu-memory": str(MIB * self.cards),
            "volcano.sh/vgpu-cores": str(100 * self.cards),
        }
        for name in map(node_name, range(self.nodes)):
            made = node(name, offered)
            gpu_ids = (f"{name}-gpu-{c}" for c in range(self.cards))
            registered = "".join(f"{i},10,{MIB},NVIDIA-Tesla T4,true,hami-core:" for i in gpu_ids)
            made["metadata"]["annotations"] = {"volcano.sh/node-vgpu-register": registered}
            yield made

        def draw() -> tuple[int, Role, Order]:
            mib, size = chance.pick((4, 6, 8, 10, 12)) * 1024, chance.pick((1, 2, 3), (4, 3, 1))
            vgpu = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": str(mib)}
            order = Order(priority_class=any_priority(chance))
            return mib * size, Role(size, {**amounts(2, 8), **vgpu}), order

        demand = self.nodes * self.cards * MIB * self.percent // 100
        yield from gangs_for(demand, draw)


GPUS: Final = 8
CPUS: Final = 96
GIB: Final = 768

PRIORITIES: Final = {"low": 1, "normal": 2, "high": 4}


def gpu_nodes(number: int) -> Iterator[Manifest]:
    """Yield `number` nodes with 8 GPUs, 96 CPUs and 768 GiB of memory each."""
    for i in range(number):
        yield node(node_name(i), amounts(CPUS, GIB, GPUS))


def node_name(number: int) -> str:
    """Return the name of the node with the given number."""
    return f"n{number:03d}"


def priority_classes() -> Iterator[Manifest]:
    """Yield the PriorityClasses that all instance families use."""
    for name, value in PRIORITIES.items():
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }


def any_priority(chance: Chance) -> str:
    """Return the name of a random PriorityClass."""
    return chance.pick(tuple(PRIORITIES), (2, 2, 1))


def share(gpus: int, cpus_per_gpu: int) -> Amounts:
    """Return a request for `gpus` GPUs, with `cpus_per_gpu` CPUs and 80 GiB of memory per GPU."""
    return amounts(gpus * cpus_per_gpu, gpus * 80, gpus)


@dataclass(frozen=True)
class HomogeneousGangs:
    """Empty equal nodes, and gangs that together request more GPUs than the nodes have.

    Tasks request 1, 2, 4 or 8 GPUs.
    """

    nodes: int  # Number of nodes.
    percent: int = 130  # GPU demand in percent of all GPUs.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        yield from gpu_nodes(self.nodes)
        yield from _gangs(chance, self.nodes * GPUS * self.percent // 100, (10,))


@dataclass(frozen=True)
class FragmentedGangs:
    """Nodes with pods of another scheduler, and gangs whose tasks differ in CPUs per GPU."""

    nodes: int  # Number of nodes.
    ratios: int = 3  # Number of CPU-to-GPU ratios that occur: the first `ratios` of 4, 8 and 12.
    percent: int = 130  # GPU demand in percent of the idle GPUs.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        ratios = (4, 8, 12)[: self.ratios]
        yield from priority_classes()
        yield from gpu_nodes(self.nodes)
        free = self.nodes * GPUS
        for i in range(self.nodes):
            gpus = chance.pick((0, 1, 2, 3, 4, 5, 6, 7), (2, 1, 2, 3, 3, 3, 2, 2))
            if gpus:
                at = node_name(i)
                free -= gpus
                yield foreign_pod(f"other-{i:03d}", share(gpus, chance.pick(ratios)), at)
        yield from _gangs(chance, free * self.percent // 100, ratios)


def _gangs(chance: Chance, gpus: int, ratios: tuple[int, ...]) -> Iterator[Manifest]:
    """Yield gangs until their demand reaches `gpus` GPUs."""

    def draw() -> tuple[int, Role, Order]:
        each = chance.pick((1, 2, 4, 8), (7, 4, 4, 5))
        size = chance.pick((1, 2, 4, 8), (8, 5, 4, 2))
        role = Role(size, share(each, chance.pick(ratios)))
        return each * size, role, Order(priority_class=any_priority(chance))

    return gangs_for(gpus, draw)


@dataclass(frozen=True)
class UnlikeTasks:
    """Gangs that contain several task classes each, and nodes with and without GPUs.

    A gang is an MPI launcher with workers, TensorFlow parameter servers with workers, or a Ray
    driver with GPU and CPU workers.
    """

    # Number of nodes with 8 GPUs, and number of nodes with 64 CPUs and no GPU.
    gpu_nodes: int
    cpu_nodes: int
    gangs: int  # Number of gangs.

    def objects(self, chance: Chance) -> Iterator[Manifest]:
        """Yield the manifests of the instance."""
        yield from priority_classes()
        yield from gpu_nodes(self.gpu_nodes)
        for i in range(self.cpu_nodes):
            yield node(f"c{i:03d}", amounts(64, 256))
        for number in range(self.gangs):
            framework = chance.pick(("mpi", "tensorflow", "ray"))
            order = Order(priority_class=any_priority(chance))
            yield from gang(f"g{number:03d}", _draw_roles(chance, framework), order)


def _draw_roles(chance: Chance, framework: str) -> list[Role]:
    """Draw the roles of a gang, as the MPI, TensorFlow or Ray operator would create them."""
    if framework == "mpi":
        each, size = chance.pick((2, 4, 8)), chance.pick((2, 4, 8), (3, 3, 1))
        return [Role(1, amounts(2, 8), "launcher"), Role(size, share(each, 8), "worker")]
    if framework == "tensorflow":
        servers, workers = chance.pick((1, 2, 4)), chance.pick((2, 4, 6))
        return [
            Role(servers, amounts(chance.pick((8, 16)), 64), "ps"),
            Role(workers, share(chance.pick((1, 2)), 8), "worker"),
        ]
    return [
        Role(1, amounts(4, 16), "driver"),
        Role(chance.int_between(1, 4), share(chance.pick((1, 2, 4)), 10), "trainer"),
        Role(chance.int_between(2, 6), amounts(chance.pick((8, 12)), 32), "reader"),
    ]
