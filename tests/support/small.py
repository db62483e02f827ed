"""Draw small random clusters, and list all their plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Allocate, Sense
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import (
    DeviceRequest,
    HostPort,
    PodTerm,
    SpreadTerm,
    Task,
    TaskShape,
    TaskStatus,
)
from optsched.cluster.topology import (
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
)
from optsched.plugins.accounting import Outcome
from optsched.plugins.verification.verify import verify_actions
from optsched.problem.arrays import UNPLACED
from optsched.problem.decisions import Decisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.problem import Problem

CPU, GPU = "cpu", "nvidia.com/gpu"
ZONE, HOST = "zone", "kubernetes.io/hostname"


def node(name: str, cpu: int = 4, gpu: int = 0, **fields: object) -> Node:
    """Return a node with CPUs and GPUs, and its name as a label."""
    offered = {CPU: cpu * 1000, "pods": 10, **({GPU: gpu} if gpu else {})}
    labels = {HOST: name, **fields.pop("labels", {})}  # type: ignore[dict-item]
    return Node(name, tuple(sorted(offered.items())), labels=labels, **fields)  # type: ignore[arg-type]


def shape(cpu: int = 1, gpu: int = 0, **fields: object) -> TaskShape:
    """Return the shape of a task with CPUs and GPUs."""
    asked = {CPU: cpu * 1000, GPU: gpu}
    return TaskShape(tuple(sorted((r, a) for r, a in asked.items() if a)), **fields)  # type: ignore[arg-type]


def gang(
    name: str, *roles: tuple[str, int, TaskShape], least: int | None = None, **fields: object
) -> Gang:
    """Return a gang from (role, number, shape). `least` is its minimum, by default all tasks."""
    key = f"ns/{name}"
    labels = fields.pop("labels", {})
    tasks = [
        Task(
            f"{key}-{role}-{i}",
            what,
            TaskStatus.PENDING,
            gang=key,
            role=role,
            index=i,
            labels=labels,  # type: ignore[arg-type]
        )
        for role, number, what in roles
        for i in range(number)
    ]
    tasks.sort(key=lambda t: t.order)
    minimum = len(tasks) if least is None else least
    fields.setdefault("phase", GangPhase.INQUEUE)
    return Gang(key, min_member=minimum, tasks=tuple(tasks), **fields)  # type: ignore[arg-type]


def running(task: Task, where: str) -> Task:
    """Return the task in status Running on a node."""
    return replace(task, status=TaskStatus.RUNNING, node=where)


def runs(made: Gang, *where: str) -> Gang:
    """Return the gang with its first tasks running on the given nodes, and its
    other tasks pending.
    """
    there = (running(t, n) for t, n in zip(made.tasks, where, strict=False))
    return replace(made, tasks=(*there, *made.tasks[len(where) :]), phase=GangPhase.RUNNING)


def cluster(
    nodes: Sequence[Node], gangs: Sequence[Gang], queues: Sequence[Queue] = (), now_ms: int = 0
) -> Snapshot:
    """Return an ordered snapshot, in which running tasks are residents of their nodes."""
    names = {q.name for q in queues}
    always = [Queue(n) for n in ("default", "root") if n not in names]
    hosted = [
        replace(
            n,
            residents=tuple(
                sorted(
                    (*n.residents, *(t for g in gangs for t in g.tasks if t.node == n.name)),
                    key=lambda t: t.key,
                )
            ),
        )
        for n in nodes
    ]
    return Snapshot(
        taken_ms=now_ms,
        nodes=tuple(sorted(hosted, key=lambda n: n.name)),
        gangs=tuple(sorted(gangs, key=lambda g: g.key)),
        queues=tuple(sorted([*queues, *always], key=lambda q: q.name)),
    )


# --- random clusters -----------------------------------------------------------------------------


def random_cluster(rng: np.random.Generator, *, related: bool = False) -> Snapshot:
    """Draw a cluster with so few tasks and nodes that every plan can be listed."""
    queues = [
        random_queue(rng, f"q{i}", str(rng.choice(["root", "q0"])) if i else "root")
        for i in range(int(rng.integers(1, 4)))
    ]
    nodes = [_random_node(rng, i, related=related) for i in range(int(rng.integers(1, 4)))]
    gangs, left = [], 5
    for i in range(int(rng.integers(1, 5))):
        if left:
            made = random_gang(rng, i, left, related=related)
            left -= len(made.tasks)
            gangs.append(replace(made, queue=f"q{int(rng.integers(len(queues)))}"))
    at = [n.name for n in nodes]
    gangs.append(_running_gang(rng, at, f"q{int(rng.integers(len(queues)))}"))
    return cluster(nodes, gangs, queues)


def random_queue(rng: np.random.Generator, name: str, parent: str) -> Queue:
    """Draw a queue with a weight, and sometimes a capability, a guarantee or a deserved amount."""
    return Queue(
        name,
        weight=int(rng.integers(1, 4)),
        priority=int(rng.integers(2)),
        capability=_some(rng, ((CPU, int(rng.integers(1, 9)) * 1000),), None),
        guarantee=_some(rng, ((CPU, int(rng.integers(1, 4)) * 1000),), ()),
        deserved=_some(rng, ((CPU, int(rng.integers(4, 8)) * 1000),), ()),
        parent=parent,
    )


def _some(rng: np.random.Generator, value: object, otherwise: object) -> object:
    return value if rng.random() < 0.4 else otherwise


def _random_node(rng: np.random.Generator, number: int, *, related: bool) -> Node:
    taints = (Taint("special", "", TaintEffect.NO_SCHEDULE),) if rng.random() < 0.2 else ()
    return node(
        f"n{number}",
        cpu=int(rng.integers(1, 6)),
        gpu=int(rng.integers(0, 3)),
        labels={ZONE: str(rng.choice(["a", "b"]))} if related or rng.random() < 0.8 else {},
        taints=taints,
        ready=bool(rng.random() < 0.95),
        unschedulable=bool(rng.random() < 0.05),
    )


def random_gang(rng: np.random.Generator, number: int, most: int, *, related: bool) -> Gang:
    """Draw a gang of one or two roles and at most `most` tasks."""
    roles = []
    for role in ("ps", "worker")[: int(rng.integers(1, 3))]:
        count = int(rng.integers(1, 3))
        if sum(n for _, n, _ in roles) + count <= most:
            roles.append((role, count, _random_shape(rng, related=related)))
    total = sum(n for _, n, _ in roles)
    least = int(rng.integers(0, total + 1)) if rng.random() < 0.4 else None
    by_role = tuple((r, 1) for r, _, _ in roles) if rng.random() < 0.3 else ()
    budget = _some(rng, ((CPU, int(rng.integers(1, 9)) * 1000),), ())
    return gang(
        f"g{number}",
        *roles,
        least=least,
        min_role=by_role,
        min_resources=budget,
        priority=int(rng.integers(1, 3)),
        created_ms=number,
        labels={"app": str(rng.choice(["x", "y"]))},
    )


def _random_shape(rng: np.random.Generator, *, related: bool) -> TaskShape:
    fields: dict[str, object] = {}
    if rng.random() < 0.2:
        wanted = Requirement(ZONE, Operator.IN, (str(rng.choice(["a", "b"])),))
        fields["node_affinity"] = NodeSelector((NodeTerm((wanted,)),))
    if rng.random() < 0.2:
        fields["tolerations"] = (Toleration(exists=True),)
    if related:
        fields.update(_random_relations(rng))
        if rng.random() < 0.15:
            part = int(rng.choice([300, 500, 700]))
            return shape(int(rng.integers(0, 4)), device=DeviceRequest(1, part), **fields)
    return shape(int(rng.integers(0, 4)), int(rng.integers(0, 2)), **fields)


def _random_relations(rng: np.random.Generator) -> dict[str, object]:
    app = LabelSelector((Requirement("app", Operator.IN, (str(rng.choice(["x", "y"])),)),))
    term = PodTerm(app, ("ns",), None, str(rng.choice([ZONE, HOST])))
    kind = int(rng.integers(6))
    if kind == 0:
        return {"pod_affinity": (term,)}
    if kind == 1:
        return {"pod_anti_affinity": (term,)}
    if kind == 2:
        skew = int(rng.integers(1, 3))
        return {"spread": (SpreadTerm(skew, term.topology_key, app, "ns"),)}
    if kind == 3:
        return {"host_ports": (HostPort("TCP", "0.0.0.0", 80),)}
    return {}


def _running_gang(rng: np.random.Generator, at: list[str], queue: str) -> Gang:
    made = gang("running", ("worker", 2, shape(1)), least=1, queue=queue, labels={"app": "x"})
    status = (TaskStatus.RUNNING, TaskStatus.RELEASING)[int(rng.random() < 0.2)]
    tasks = (replace(made.tasks[0], status=status, node=str(rng.choice(at))), made.tasks[1])
    return replace(made, tasks=tasks, phase=GangPhase.RUNNING)


# --- networks ------------------------------------------------------------------------------------


def network(*racks: Sequence[str], spines: Sequence[Sequence[int]] = ()) -> Topology:
    """Return racks r0, r1 … of tier 1 with nodes, and spines s0, s1 … of tier 2 with racks."""
    above = {f"r{r}": f"s{i}" for i, spine in enumerate(spines) for r in spine}
    leaves = [
        HyperNode(f"r{i}", 1, "rack", above.get(f"r{i}", ""), tuple(sorted(nodes)))
        for i, nodes in enumerate(racks)
    ]
    inner = [HyperNode(f"s{i}", 2, "spine") for i in range(len(spines))]
    return Topology((*leaves, *inner))


def random_network(rng: np.random.Generator, nodes: Sequence[str]) -> Topology:
    """Draw up to three racks, sometimes below a spine. Some nodes are in no rack."""
    racks: list[list[str]] = [[] for _ in range(int(rng.integers(1, 4)))]
    for name in nodes:
        if rng.random() < 0.9:
            racks[int(rng.integers(len(racks)))].append(name)
    spine = [i for i in range(len(racks)) if rng.random() < 0.7]
    return network(*racks, spines=[spine] if rng.random() < 0.7 else ())


def random_request(rng: np.random.Generator) -> TopologyRequest:
    """Draw a hard or soft request for tiers, or a hard request for zones."""
    kind = int(rng.integers(6))
    if kind == 0:
        return TopologyRequest(TopologyMode.SOFT)
    if kind == 1:
        return TopologyRequest(label=ZONE)
    if kind == 2:
        return TopologyRequest(highest_tier_name=str(rng.choice(["rack", "spine"])))
    return TopologyRequest(highest_tier=int(rng.integers(1, 3)))


def with_network(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Return the cluster with a network, and with gangs that request a topology."""
    gangs = tuple(_asking(rng, gang) for gang in snapshot.gangs)
    names = [n.name for n in snapshot.nodes]
    return replace(snapshot, gangs=gangs, topology=random_network(rng, names))


def _asking(rng: np.random.Generator, gang: Gang) -> Gang:
    if rng.random() < 0.3:
        return gang
    asks = random_request(rng) if rng.random() < 0.8 else None
    if rng.random() < 0.6 or (asks is not None and asks.label):
        return replace(gang, topology=asks)
    rule = SubGroupRule(
        "by-part",
        size=int(rng.integers(1, 3)),
        min_groups=int(rng.integers(0, 2)),
        keys=("part",),
        topology=None if rng.random() < 0.3 else replace(random_request(rng), label=""),
    )
    tasks = tuple(replace(t, labels={**t.labels, **_part_label(rng)}) for t in gang.tasks)
    return replace(gang, topology=asks, tasks=tasks, sub_groups=(rule,))


def _part_label(rng: np.random.Generator) -> dict[str, str]:
    part = str(rng.choice(["0", "1", "none"]))
    return {} if part == "none" else {"part": part}


# --- every plan ----------------------------------------------------------------------------------


def every_plan(problem: Problem) -> Iterator[Decisions]:
    """Yield every placement of the tasks of open gangs on nodes, valid or not."""
    empty = Decisions.nothing(problem)
    choices = range(UNPLACED, problem.num_nodes)
    for nodes in product(choices, repeat=len(problem.tasks)):
        yield replace(empty, node_of=np.array(nodes, np.int64))


def actions_of(problem: Problem, decisions: Decisions) -> list[Allocate]:
    """Return the Allocate actions of decisions."""
    return [
        Allocate(task.key, problem.snapshot.nodes[n].name, task.gang)
        for task, n in zip(problem.tasks, decisions.node_of.tolist(), strict=True)
        if n != UNPLACED
    ]


def best_values(problem: Problem, rules: RuleSet, levels: Sequence[AnyLevel]) -> tuple[int, ...]:
    """Return the lexicographically best values of all plans that the verifier accepts."""
    best: tuple[int, ...] | None = None
    for decisions in every_plan(problem):
        outcome = Outcome(problem, decisions)
        signed = tuple(t.value(outcome) * (1 if t.sense is Sense.MAX else -1) for t in levels)
        if (best is None or signed > best) and not verify_actions(
            problem.snapshot, actions_of(problem, decisions), rules
        ):
            best = signed
    assert best is not None
    return tuple(v * (1 if t.sense is Sense.MAX else -1) for v, t in zip(best, levels, strict=True))
