"""`Impossible` occurs exactly if a gang's minimum fits no empty cluster.

An independent model checks this rule. The model uses the meaning of gangs, nodes and masks,
and no code of the explanations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ortools.sat.python import cp_model

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.selectors import (
    LabelSelector,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import GangPhase, Node, Queue
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm, Task, TaskShape, TaskStatus
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity, Taints
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.session.decompile import pending_of
from optsched.solver.cpsat.integer_program import create_solver
from tests.support.effort import num_examples
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, HOST, ZONE, cluster, gang
from tests.support.small import node as small_node
from tests.support.small import shape as small_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.snapshot import Gang, Snapshot

MEMORY, PLENTY = "memory", 1000
RULES = RuleSet.of(
    *(GangRule(), Proportion(), Capability(), Guarantee(), Overcommit()),
    *(NodeAffinity(), Taints(), HostPorts(), PodAffinity()),
)
SPOT = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
WEB = (HostPort("TCP", "0.0.0.0", 80),)
APART = LabelSelector((Requirement("app", Operator.IN, ("apart",)),))
NUMBER = num_examples(300)


# --- random clusters -----------------------------------------------------------------------------


def random_cluster(rng: np.random.Generator, *, shared: bool) -> Snapshot:
    """Draw a few nodes of several classes with some pods, and one gang that requests too much."""
    nodes = [_node(rng, i) for i in range(int(rng.integers(1, 6)))]
    wanted = _gang(rng, shared=shared)
    if rng.random() < 0.2:
        wanted = _broken(rng, wanted, nodes)
    there = [g for i, n in enumerate(nodes) if (g := _running(rng, i, n)) is not None]
    queues = (
        Queue(
            "q",
            weight=int(rng.integers(1, 3)),
            capability=((CPU, int(rng.integers(4, 30)) * 1000),) if rng.random() < 0.3 else None,
        ),
        Queue("vip", guarantee=((CPU, 8000),) if rng.random() < 0.4 else ()),
        Queue("other", weight=3),
    )
    return cluster(nodes, [wanted, *there], queues)


def _node(rng: np.random.Generator, number: int) -> Node:
    cpu, memory, gpu = (int(rng.choice(sizes)) for sizes in ((4, 8, 16), (4, 8, 16), (0, 1, 2, 4)))
    offers = {CPU: cpu * 1000, MEMORY: memory, GPU: gpu, "pods": int(rng.choice([2, 3, 10]))}
    return Node(
        f"n{number}",
        tuple(sorted((r, a) for r, a in offers.items() if a)),
        labels={HOST: f"n{number}", ZONE: str(rng.choice(["a", "b"]))},
        taints=SPOT if rng.random() < 0.2 else (),
        ready=bool(rng.random() < 0.9),
        unschedulable=bool(rng.random() < 0.05),
    )


def _running(rng: np.random.Generator, number: int, on: Node) -> Gang | None:
    if rng.random() < 0.5:
        return None
    asked = {CPU: int(rng.integers(1, 5)) * 1000, MEMORY: int(rng.integers(0, 4))}
    if rng.random() < 0.5 and on.offer(GPU):
        asked[GPU] = 1
    shape = TaskShape(tuple(sorted((r, a) for r, a in asked.items() if a)))
    made = gang(f"old{number}", ("w", 1, shape), queue="other", phase=GangPhase.RUNNING)
    (task,) = made.tasks
    return replace(made, tasks=(replace(task, status=TaskStatus.RUNNING, node=on.name),))


def _gang(rng: np.random.Generator, *, shared: bool) -> Gang:
    kinds = int(rng.integers(1, 4))
    roles = [
        (f"r{i % 2}" if rng.random() < 0.7 else "r0", int(rng.integers(1, 5)), _shape(rng, shared))
        for i in range(kinds)
    ]
    tasks = [
        Task(
            f"ns/g-{i}-{k}",
            shape,
            TaskStatus.PENDING,
            gang="ns/g",
            role=role,
            index=10 * i + k,
            labels={"app": "apart" if shape.pod_anti_affinity else "x"},
        )
        for i, (role, count, shape) in enumerate(roles)
        for k in range(count)
    ]
    tasks.sort(key=lambda t: t.order)
    least = len(tasks) if rng.random() < 0.4 else int(rng.integers(1, len(tasks) + 1))
    found = {role: sum(t.role == role for t in tasks) for role in {t.role for t in tasks}}
    drawn = [(role, int(rng.integers(1, n + 1))) for role, n in sorted(found.items())]
    # If role minimums exceed the gang's minimum, they have another meaning.
    by_role = drawn if sum(n for _, n in drawn) <= least else []
    made = gang("g", queue="q", least=least, phase=GangPhase.INQUEUE)
    return replace(
        made,
        tasks=tuple(tasks),
        min_role=tuple(each for each in by_role if rng.random() < 0.3),
    )


def _broken(rng: np.random.Generator, of: Gang, nodes: list[Node]) -> Gang:
    """Return the gang with fewer running pods than its minimum, on arbitrary nodes."""
    number = int(rng.integers(0, of.min_member))
    kinds = [t.shape for t in of.tasks]
    chosen = [t.key for t in of.tasks if kinds.count(t.shape) > 1][:number]
    alike = {t.shape for t in of.tasks if t.key not in chosen}
    runs = [t.key for t in of.tasks if t.key in chosen and t.shape in alike]
    tasks = (
        replace(t, status=TaskStatus.RUNNING, node=nodes[0].name) if t.key in runs else t
        for t in of.tasks
    )
    return replace(of, tasks=tuple(tasks), min_role=())


def _shape(rng: np.random.Generator, shared: bool) -> TaskShape:
    asked = {CPU: int(rng.choice([1, 2, 3, 4, 7, 9])) * 1000, MEMORY: int(rng.choice([0, 1, 3, 5]))}
    fields: dict[str, object] = {}
    kind = rng.random()
    if shared and kind < 0.4:
        fields["device"] = DeviceRequest(1, int(rng.choice([300, 400, 500, 700])))
    elif kind < 0.7:
        asked[GPU] = int(rng.choice([0, 1, 1, 2, 3]))
    if rng.random() < 0.25:
        fields["node_selector"] = ((ZONE, str(rng.choice(["a", "b"]))),)
    if rng.random() < 0.25:
        fields["tolerations"] = (Toleration(exists=True),)
    if shared and rng.random() < 0.15:
        fields["host_ports"] = WEB
    if shared and rng.random() < 0.15:
        fields["pod_anti_affinity"] = (PodTerm(APART, ("ns",), None, HOST),)
    request = tuple(sorted((r, a) for r, a in asked.items() if a))
    return TaskShape(request, **fields)  # type: ignore[arg-type]


# --- the model -----------------------------------------------------------------------------------


@dataclass
class Model:
    """An independent model of the pods of a gang that fit an empty cluster."""

    snapshot: Snapshot
    raised: frozenset[str] = frozenset()

    def missing(self) -> int:
        """Return the number of the minimum's pods that do not fit in the best packing."""
        (wanted,) = (g for g in self.snapshot.gangs if g.key == "ns/g")
        model = cp_model.CpModel()
        at = {
            (t.key, n.name): model.new_bool_var("")
            for t in wanted.tasks
            for n in self.snapshot.nodes
            if self._is_open(t, n)
        }
        placed = {t.key: [x for (key, _), x in at.items() if key == t.key] for t in wanted.tasks}
        for options in placed.values():
            model.add(sum(options) <= 1)
        for node in self.snapshot.nodes:
            here = [(t, at[t.key, node.name]) for t in wanted.tasks if (t.key, node.name) in at]
            self._fill(model, node, here)
        short = model.new_int_var(0, len(wanted.tasks), "")
        least = model.new_int_var(0, len(wanted.tasks), "")
        by_role = []
        for role, number in wanted.min_role:
            lack = model.new_int_var(0, number, "")
            mine = [x for t in wanted.tasks if t.role == role for x in placed[t.key]]
            model.add(lack >= number - sum(mine))
            by_role.append(lack)
        model.add(short >= wanted.min_member - sum(at.values()))
        model.add(least >= short)
        model.add(least >= sum(by_role))
        model.minimize(least)
        solver = create_solver()
        solver.parameters.num_workers = 1
        assert solver.solve(model) == cp_model.OPTIMAL
        return round(solver.objective_value)

    def _is_open(self, task: Task, node: Node) -> bool:
        labels = dict(task.shape.node_selector)
        marked = bool(node.taints) or node.unschedulable
        return (
            node.ready
            and all(node.labels.get(k) == v for k, v in labels.items())
            and (not marked or bool(task.shape.tolerations))
        )

    def _fill(
        self, model: cp_model.CpModel, node: Node, here: list[tuple[Task, cp_model.IntVar]]
    ) -> None:
        offers = dict(node.allocatable)
        for resource in (CPU, MEMORY, "pods"):
            asked = [
                (1 if resource == "pods" else dict(t.shape.request).get(resource, 0)) * x
                for t, x in here
            ]
            if resource not in self.raised:
                model.add(sum(asked) <= offers.get(resource, 0))
        for group in (
            [x for t, x in here if t.shape.host_ports],
            [x for t, x in here if t.shape.pod_anti_affinity],
        ):
            model.add(sum(group) <= 1)
        if GPU not in self.raised:
            self._deal(model, offers.get(GPU, 0), here)

    def _deal(
        self, model: cp_model.CpModel, devices: int, here: list[tuple[Task, cp_model.IntVar]]
    ) -> None:
        """Add constraints that assign GPUs and GPU shares to devices within their capacity."""
        load: list[list[cp_model.LinearExprT]] = [[] for _ in range(devices)]
        for task, x in here:
            part = task.shape.device.milli if task.shape.device else 0
            number = 1 if part else dict(task.shape.request).get(GPU, 0)
            on = [model.new_bool_var("") for _ in range(devices)]
            model.add(sum(on) == number * x)
            for d, chosen in enumerate(on):
                load[d].append((part or PLENTY) * chosen)
        for each in load:
            model.add(sum(each) <= PLENTY)


# --- what is held to it --------------------------------------------------------------------------


def reason_of(snapshot: Snapshot) -> tuple[ReasonCode, str] | None:
    """Return the reason of the gang if it gets no node, or None if it starts."""
    bench = Bench.of(snapshot, RULES, ())
    pending = pending_of(bench.problem, bench.greedy(), RULES).get("ns/g")
    started = (bench.greedy().node_of >= 0).any()
    return None if pending is None or started else (pending.code, pending.message)


def named(message: str) -> frozenset[str]:
    """Return the resources that a message names as insufficient."""
    one = re.search(r"offers more than ([\w./ -]+?)(?:;|$)", message)
    if one:
        return frozenset(amount.split(" ")[1] for amount in one[1].split(" and "))
    some = re.search(r"too little ([\w./ -]+?)(?:, refused|;|$)", message)
    names = some[1].split(" and ") if some else []
    return frozenset("pods" if name == "room for pods" else name for name in names)


@pytest.mark.parametrize("shared", [False, True], ids=["plain", "related"])
def test_impossible_comes_just_where_no_empty_cluster_holds_the_minimum(shared: bool) -> None:
    tally: dict[ReasonCode, int] = {}
    for seed in range(NUMBER):
        snapshot = random_cluster(np.random.default_rng([seed, shared]), shared=shared)
        found = reason_of(snapshot)
        missing = Model(snapshot).missing()
        if found is None:
            # Running pods may be on nodes that would refuse them now.
            broken = any(t.node for g in snapshot.gangs if g.key == "ns/g" for t in g.tasks)
            assert broken or not missing, f"seed {seed}: it starts, and the model has no room"
            continue
        code, message = found
        tally[code] = tally.get(code, 0) + 1
        if not missing:
            assert code is not ReasonCode.IMPOSSIBLE, f"seed {seed}: {message}"
        elif code is ReasonCode.PREDICATES:
            # Nodes without GPUs cannot hold GPU shares, whatever else they offer.
            everything = frozenset([CPU, MEMORY, "pods", *([] if shared else [GPU])])
            assert Model(snapshot, everything).missing(), f"seed {seed}: {message}"
        else:
            assert code is ReasonCode.IMPOSSIBLE, f"seed {seed}: {found}"
            check_named(snapshot, message, missing, f"seed {seed}: {message}")
    assert tally[ReasonCode.IMPOSSIBLE] > NUMBER // 10
    assert sum(tally.values()) - tally[ReasonCode.IMPOSSIBLE] > NUMBER // 10


def check_named(snapshot: Snapshot, message: str, missing: int, where: str) -> None:
    """Check that more of the named resources would help, and that the pod count is right."""
    names = named(message)
    without = Model(snapshot, names).missing()
    assert not names or without < missing, where
    assert names or "refused by" in message, where
    room = re.search(r"room for (\d+) only", message)
    pods = sum(int(n) for n in re.findall(r"(\d+) pods? (?:of|with)", message))
    assert room is None or pods - int(room[1]) == missing, where


def raised(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """Return the cluster with plenty of some resources on each node."""
    more = dict.fromkeys(names, 10**6)
    return replace(
        snapshot,
        nodes=tuple(
            replace(n, allocatable=tuple(sorted({**dict(n.allocatable), **more}.items())))
            for n in snapshot.nodes
        ),
    )


def test_min_resources_name_all_that_no_node_offers() -> None:
    asked = ((CPU, 1000), ("nvidia.com/v100", 8), ("rdma/v100", 2))
    made = gang("g", ("w", 2, small_shape(1)), min_resources=asked)
    reason = reason_of(cluster([small_node("n")], [made]))
    assert reason is not None
    code, message = reason
    assert code is ReasonCode.IMPOSSIBLE
    assert message == (
        "minResources requests 8 nvidia.com/v100, 2 rdma/v100, "
        "all nodes together offer 0 nvidia.com/v100, 0 rdma/v100"
    )
