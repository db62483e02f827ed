"""Draw random clusters, always the same for the same family, number and seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.oracle.manifests import GPU, NAMESPACE, Cluster, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle.manifests import Manifest

VGPU = "volcano.sh/vgpu-number"
VMEM = "volcano.sh/vgpu-memory"
VCORES = "volcano.sh/vgpu-cores"
CARD_MB = 16_384
PRIORITIES = (("", 0), ("low", 10), ("high", 100), ("urgent", 1000))
LONG_AGO_S, LATELY_S = 0, 570


@dataclass(frozen=True)
class Size:
    """The size of clusters, as inclusive ranges of numbers."""

    nodes: tuple[int, int]
    pending: tuple[int, int]
    running: tuple[int, int]
    queues: tuple[int, int] = (2, 4)


SMALL = Size((2, 8), (2, 12), (0, 20))
MEDIUM = Size((10, 60), (10, 60), (10, 80), (3, 6))

Request = dict[str, int | str]


class _Draw:
    """A generator of one cluster."""

    def __init__(self, rng: Random, size: Size) -> None:
        self.rng, self.size = rng, size
        self.cluster = Cluster()
        self.idle: dict[str, dict[str, int]] = {}
        self.queues = ["default"]
        self.has_guarantees = False
        self.priorities = PRIORITIES[:1]
        self.shapes: list[Request] = [{"cpu": 1}]
        self.decorate: Callable[[], dict[str, Any]] = dict
        self.count = 0

    def between(self, ends: tuple[int, int]) -> int:
        """Return a random number in an inclusive range."""
        return self.rng.randint(*ends)

    # --- parts -----------------------------------------------------------------------------------

    def nodes(self, kinds: list[Request], labels: Callable[[int], dict[str, str]] = lambda _: {}):
        """Draw nodes of the given types."""
        for i in range(self.between(self.size.nodes)):
            offer = self.rng.choice(kinds)
            name = f"n{i}"
            self.cluster.node(name, offer, labels(i))
            self.idle[name] = {r: int(str(a).removesuffix("Gi")) for r, a in offer.items()}

    def use_priorities(self, most: int) -> None:
        """Let gangs use the first `most` priorities."""
        self.priorities = PRIORITIES[:most]
        for name, value in self.priorities[1:]:
            self.cluster.priority_class(name, value)

    def kinds(self) -> list[Request]:
        """Return random node types with CPU and memory, some with GPUs."""
        rng = self.rng
        made: list[Request] = []
        for _ in range(rng.randint(1, 3)):
            kind: Request = {
                "cpu": rng.choice([2, 3, 4, 8, 16]),
                "memory": f"{rng.choice([8, 16])}Gi",
            }
            if rng.random() < 0.5:
                kind[GPU] = rng.choice([1, 2, 4, 8])
            made.append(kind)
        return made

    def draw_shapes(self, *, gpus: bool = True) -> None:
        """Draw the requests that pods may have."""
        rng = self.rng
        self.shapes = []
        for _ in range(rng.randint(1, 5)):
            shape: Request = {"cpu": rng.choice([1, 1, 2, 3, 4])}
            if rng.random() < 0.4:
                shape["memory"] = f"{rng.choice([1, 2, 4])}Gi"
            if gpus and rng.random() < 0.4:
                shape[GPU] = rng.choice([1, 1, 2, 4])
            self.shapes.append(shape)

    # --- gangs -----------------------------------------------------------------------------------

    def _name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pending(self, **spec: Any) -> Manifest:
        """Add a waiting gang."""
        rng = self.rng
        size = rng.choice([1, 1, 1, 2, 2, 3, 4])
        minimum = size if rng.random() < 0.6 else rng.randint(1, size)
        gang = self._gang("g", minimum, **spec)
        shape = rng.choice(self.shapes)
        for i in range(size):
            if rng.random() < 0.1:
                shape = rng.choice(self.shapes)
            self.cluster.pod(gang, f"{gang['metadata']['name']}-{i}", shape, **self.decorate())
        return gang

    def _gang(self, prefix: str, minimum: int, **spec: Any) -> Manifest:
        rng = self.rng
        created = LONG_AGO_S if rng.random() < 0.1 else LATELY_S
        spec.setdefault("created", created + rng.randint(0, 20))
        queue = rng.choice(self.queues)
        return self.cluster.gang(
            self._name(prefix), queue, minimum, rng.choice(self.priorities), **spec
        )

    def running(self, **spec: Any) -> int:
        """Add a running gang, sometimes below its minimum, and return the number of its pods."""
        rng = self.rng
        size = rng.choice([1, 1, 2, 2, 3, 4])
        shape = rng.choice(self.shapes)
        given = self.decorate()
        where = []
        for _ in range(size):
            node = self.place(shape)
            if node:
                where.append(node)
        if not where:
            return 0
        broken = rng.random() < 0.12
        minimum = len(where) + 1 if broken else rng.randint(1, len(where))
        gang = self._gang("r", minimum, **spec)
        gang["status"]["phase"] = "Running"
        name = gang["metadata"]["name"]
        # The annotation has an exception for claims within a guarantee, which the oracle does not
        # model.
        if rng.random() < 0.05 and not self.has_guarantees:
            given = {**given, "notes": {"volcano.sh/preemptable": "false"}}
        for i, node in enumerate(where):
            self.cluster.pod(gang, f"{name}-{i}", shape, node, **given)
        waiting = 1 if broken else int(rng.random() < 0.15)
        for i in range(waiting):
            self.cluster.pod(gang, f"{name}-w{i}", shape, **given)
        return len(where)

    def place(self, shape: Request) -> str:
        """Reserve capacity for a pod on a random node, and return the node.

        Return an empty text if the pod fits no node.
        """
        asked = {r: int(str(a).removesuffix("Gi")) for r, a in shape.items()}
        open_to = [
            n for n, idle in self.idle.items() if all(idle.get(r, 0) >= a for r, a in asked.items())
        ]
        if not open_to:
            return ""
        chosen = self.rng.choice(open_to)
        for resource, amount in asked.items():
            self.idle[chosen][resource] -= amount
        return chosen

    def fill(self, most: int) -> None:
        """Add running gangs until about `most` pods run."""
        have, tries = 0, 0
        while have < most and tries < 2 * most:
            have += self.running()
            tries += 1

    def foreign(self) -> None:
        """Add pods of another scheduler."""
        for i in range(self.rng.randint(1, 3)):
            shape = self.rng.choice(self.shapes)
            node = self.place(shape)
            if node:
                self.cluster.pod(None, f"foreign-{i}", shape, node)

    def wait(self, spec: Callable[[], dict[str, Any]] = dict) -> None:
        """Add the waiting gangs."""
        for _ in range(self.between(self.size.pending)):
            self.pending(**spec())

    def draw_queues(self, *, deep: bool) -> None:
        """Draw queues with gangs in leaf queues only.

        With `deep`, some queues have child queues.
        """
        rng = self.rng
        kind = rng.choice(["weights", "deserved", "both", "guarantees"])
        self.has_guarantees = kind == "guarantees"
        tops = [f"q{i}" for i in range(self.between(self.size.queues))]
        leaves: list[str] = []
        for top in tops:
            self._queue(top, "", kind)
            if not deep or rng.random() < 0.4:
                leaves.append(top)
                continue
            for j in range(rng.randint(1, 3)):
                name = f"{top}-{j}"
                self._queue(name, top, kind)
                if rng.random() < 0.25:
                    for k in range(rng.randint(1, 2)):
                        self._queue(f"{name}-{k}", name, kind)
                        leaves.append(f"{name}-{k}")
                else:
                    leaves.append(name)
        self.queues = leaves

    def _queue(self, name: str, parent: str, kind: str) -> None:
        rng = self.rng
        offered = self.offered()
        spec: dict[str, Any] = {
            "weight": rng.choice([1, 1, 2, 3]),
            "reclaimable": rng.random() < 0.9,
        }
        if parent:
            spec["parent"] = parent
        named = [r for r in ("cpu", GPU) if offered.get(r) and rng.random() < 0.7]
        if kind in ("deserved", "both") and named and rng.random() < 0.85:
            spec["deserved"] = {r: str(rng.randint(0, max(offered[r] // 2, 1))) for r in named}
        if kind == "guarantees" and named and rng.random() < 0.6:
            held = {r: str(rng.randint(0, max(offered[r] // 4, 1))) for r in named}
            spec["guarantee"] = {"resource": held}
        if named and rng.random() < 0.2:
            floor = spec.get("guarantee", {}).get("resource", {})
            least = {r: max(int(floor.get(r, 0)), 1) for r in named}
            spec["capability"] = {r: str(rng.randint(least[r], offered[r])) for r in named}
        if rng.random() < 0.1:
            spec["priority"] = rng.choice([1, 10])
        if rng.random() < 0.1:
            spec["dequeueStrategy"] = "fifo"
        self.cluster.queue(name, **spec)

    def offered(self) -> dict[str, int]:
        """Return the total allocatable CPUs and GPUs of all nodes, by resource."""
        total: dict[str, int] = {}
        for node in self.cluster.of_kind("Node"):
            for resource, amount in node["status"]["allocatable"].items():
                if resource in ("cpu", GPU):
                    total[resource] = total.get(resource, 0) + int(amount)
        return total


# --- families ------------------------------------------------------------------------------------


def _packing(draw: _Draw) -> None:
    """Draw nodes and waiting gangs in one queue."""
    draw.use_priorities(draw.rng.choice([1, 1, 3]))
    draw.nodes(draw.kinds())
    draw.draw_shapes()
    draw.wait()


def _queues(draw: _Draw) -> None:
    """Draw queues with weights, deserved amounts and guarantees, with or without a tree.

    Some queues have running gangs.
    """
    rng = draw.rng
    draw.use_priorities(rng.choice([1, 2]))
    draw.nodes(draw.kinds())
    draw.draw_shapes()
    draw.draw_queues(deep=rng.random() < 0.5)
    if rng.random() < 0.3:
        draw.foreign()
    draw.fill(draw.between(draw.size.running) if rng.random() < 0.8 else 0)
    draw.wait()


def _running(draw: _Draw) -> None:
    """Draw full nodes with several priorities, broken gangs and protected pods."""
    rng = draw.rng
    draw.use_priorities(rng.choice([2, 3, 4]))
    draw.nodes(draw.kinds())
    draw.draw_shapes()
    if rng.random() < 0.5:
        draw.draw_queues(deep=False)
    draw.fill(max(draw.between(draw.size.running), draw.size.running[1] // 2))
    draw.wait()


def _relations(draw: _Draw) -> None:
    """Draw node affinity, taints, anti-affinity between pods and host ports."""
    rng = draw.rng
    draw.use_priorities(rng.choice([1, 3]))
    draw.nodes(draw.kinds(), lambda i: {"zone": f"z{i % 3}"})
    for node in draw.cluster.of_kind("Node"):
        if rng.random() < 0.2:
            node["spec"]["taints"] = [{"key": "special", "effect": "NoSchedule"}]
    draw.draw_shapes()
    draw.decorate = lambda: _related(rng)
    draw.fill(draw.between(draw.size.running) // 2)
    draw.wait()


def _related(rng: Random) -> dict[str, Any]:
    """Return the constraints of a pod on nodes, other pods and host ports."""
    app = rng.choice(["a", "b", "c"])
    given: dict[str, Any] = {"labels": {"app": app}}
    draw = rng.random()
    if draw < 0.2:
        given["nodeSelector"] = {"zone": f"z{rng.randint(0, 2)}"}
    elif draw < 0.35:
        term = {
            "topologyKey": rng.choice(["kubernetes.io/hostname", "zone"]),
            "labelSelector": {"matchLabels": {"app": rng.choice(["a", "b", "c"])}},
        }
        given["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
    elif draw < 0.45:
        given["ports"] = (rng.choice([8080, 9090]),)
    if rng.random() < 0.3:
        given["tolerations"] = [{"key": "special", "operator": "Exists"}]
    return given


def _topology(draw: _Draw) -> None:
    """Draw racks and spines, and gangs with a hard or soft network topology."""
    rng = draw.rng
    draw.use_priorities(rng.choice([1, 2, 3]))
    draw.nodes(draw.kinds())
    draw.draw_shapes()
    names = list(draw.idle)
    per_rack = rng.choice([1, 2, 3])
    racks = [names[i : i + per_rack] for i in range(0, len(names), per_rack)]
    for i, members in enumerate(racks):
        _hyper_node(draw.cluster, f"rack-{i}", 1, "Node", members)
    for i in range(0, len(racks), 2):
        members = [f"rack-{j}" for j in range(i, min(i + 2, len(racks)))]
        _hyper_node(draw.cluster, f"spine-{i // 2}", 2, "HyperNode", members)
    draw.fill(draw.between(draw.size.running) // 2 if rng.random() < 0.6 else 0)

    def network() -> dict[str, Any]:
        chance = rng.random()
        if chance < 0.4:
            return {}
        if chance < 0.6:
            return {"networkTopology": {"mode": "soft"}}
        tier = rng.choice([1, 1, 2])
        return {"networkTopology": {"mode": "hard", "highestTierAllowed": tier}}

    draw.wait(network)


def _hyper_node(cluster: Cluster, name: str, tier: int, kind: str, members: list[str]) -> None:
    exact = [{"type": kind, "selector": {"exactMatch": {"name": m}}} for m in members]
    cluster.add(
        "topology.volcano.sh/v1alpha1", "HyperNode", name, spec={"tier": tier, "members": exact}
    )


def _shared(draw: _Draw) -> None:
    """Draw GPUs that pods share by memory and cores."""
    rng = draw.rng
    draw.use_priorities(rng.choice([1, 2, 3]))
    for i in range(draw.between(draw.size.nodes)):
        name, cards = f"n{i}", rng.choice([1, 1, 2, 4])
        offer = {
            "cpu": rng.choice([8, 16, 32]),
            "memory": "64Gi",
            VGPU: 10 * cards,
            VMEM: CARD_MB * cards,
            VCORES: 100 * cards,
        }
        node = draw.cluster.node(name, offer)
        register = "".join(
            f"{name}-gpu-{c},10,{CARD_MB},NVIDIA-Tesla T4,true,hami-core:" for c in range(cards)
        )
        node["metadata"]["annotations"] = {"volcano.sh/node-vgpu-register": register}
    draw.shapes = [
        {"cpu": rng.choice([1, 2, 4]), VGPU: 1, VMEM: CARD_MB * rng.randint(1, 4) // 4}
        for _ in range(rng.randint(1, 4))
    ]
    if rng.random() < 0.4:
        draw.shapes.append({"cpu": 1, VGPU: 2, VMEM: CARD_MB // 2})
    if rng.random() < 0.4:
        draw.shapes.append({"cpu": 1, VGPU: 1, VMEM: CARD_MB // 4, VCORES: 50})
    draw.wait()


def _mixed(draw: _Draw) -> None:
    """Draw parts of all families together, and features that no other family has.

    These features are disruption budgets, terminating and nominated pods, minimums by task, gangs
    that are not enqueued, closed nodes, spread constraints and closed queues.
    """
    rng = draw.rng
    draw.use_priorities(rng.choice([1, 2, 3, 4]))
    draw.nodes(draw.kinds(), lambda i: {"zone": f"z{i % 3}"})
    for node in draw.cluster.of_kind("Node"):
        chance = rng.random()
        if chance < 0.1:
            node["spec"]["taints"] = [{"key": "special", "effect": "NoSchedule"}]
        elif chance < 0.15:
            node["spec"]["unschedulable"] = True
        elif chance < 0.18:
            node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    draw.draw_shapes()
    if rng.random() < 0.75:
        draw.draw_queues(deep=rng.random() < 0.5)
    if rng.random() < 0.3:
        draw.foreign()
    if rng.random() < 0.4:
        draw.decorate = lambda: _related(rng) if rng.random() < 0.5 else _spread(rng)
    if rng.random() < 0.3:
        names = list(draw.idle)
        width = rng.choice([1, 2, 3])
        racks = [names[i : i + width] for i in range(0, len(names), width)]
        for i, members in enumerate(racks):
            _hyper_node(draw.cluster, f"rack-{i}", 1, "Node", members)
        whole = [f"rack-{i}" for i in range(len(racks))]
        _hyper_node(draw.cluster, "spine", 2, "HyperNode", whole)
    has_racks = bool(draw.cluster.of_kind("HyperNode"))
    draw.fill(draw.between(draw.size.running) if rng.random() < 0.9 else 0)

    def spec() -> dict[str, Any]:
        chance = rng.random()
        if has_racks and chance < 0.3:
            tier = rng.choice([1, 1, 2])
            return {"networkTopology": {"mode": "hard", "highestTierAllowed": tier}}
        if has_racks and chance < 0.4:
            return {"networkTopology": {"mode": "soft"}}
        return {}

    draw.wait(spec)
    _unsettle(draw)


def _spread(rng: Random) -> dict[str, Any]:
    """Return labels of a pod, sometimes with a spread constraint over zones or nodes."""
    app = rng.choice(["a", "b", "c"])
    given: dict[str, Any] = {"labels": {"app": app}}
    if rng.random() < 0.3:
        constraint = {
            "maxSkew": rng.choice([1, 1, 2]),
            "topologyKey": rng.choice(["kubernetes.io/hostname", "zone"]),
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }
        given["topologySpreadConstraints"] = [constraint]
    return given


def _unsettle(draw: _Draw) -> None:
    """Make some pods terminating, nominated or protected by a budget, and some
    gangs not enqueued.
    """
    rng, cluster = draw.rng, draw.cluster
    nodes = [n["metadata"]["name"] for n in cluster.of_kind("Node")]
    for pod in cluster.of_kind("Pod"):
        runs = "nodeName" in pod["spec"]
        if runs and rng.random() < 0.06:
            pod["metadata"]["deletionTimestamp"] = timestamp(LATELY_S + 25)
        if not runs and rng.random() < 0.04:
            pod["status"]["nominatedNodeName"] = rng.choice(nodes)
        if runs and rng.random() < 0.05 and not draw.has_guarantees:
            pod["metadata"]["annotations"]["volcano.sh/preemptable"] = "false"
    for gang in cluster.of_kind("PodGroup"):
        if gang["status"]["phase"] == "Inqueue" and rng.random() < 0.1:
            gang["status"]["phase"] = "Pending"
    for queue in cluster.of_kind("Queue"):
        if rng.random() < 0.04 and queue["metadata"]["name"] != "default":
            queue["status"] = {"state": "Closed"}
    if rng.random() < 0.2:
        app = rng.choice(["a", "b", "c"])
        status = {"disruptionsAllowed": rng.randint(0, 2), "currentHealthy": 3, "desiredHealthy": 1}
        cluster.add(
            "policy/v1",
            "PodDisruptionBudget",
            "budget",
            metadata={"namespace": NAMESPACE},
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
            status={**status, "expectedPods": 3},
        )


MIXED = "mixed"
"""The family that is drawn separately, so that the clusters of other families do not change."""

FAMILIES: dict[str, Callable[[_Draw], None]] = {
    "packing": _packing,
    "queues": _queues,
    "running": _running,
    "relations": _relations,
    "topology": _topology,
    "shared": _shared,
}


def draw_cluster(family: str, seed: int, number: int, size: Size = SMALL) -> Cluster:
    """Return the cluster for a family, a seed and a number."""
    draw = _Draw(Random(f"{seed}/{family}/{number}"), size)
    draw.cluster.queue("default")
    (_mixed if family == MIXED else FAMILIES[family])(draw)
    return draw.cluster
