"""Measure how session time grows with the number of task classes, queues, resources and priorities.

Run `make bench-growth`. Each scenario runs at half its size and at its full size with the default
model. The limits are those of a live scheduler: two workers, 400 ms. Every plan must pass the
verifier. The result is the wall time from the snapshot to the verified plan, without the time for
waiting reasons and bounds. Growth is the ratio of the CPU seconds of both sizes, which is 2 for
linear time. CPU seconds of this process do not depend on other load of the machine.

Results of two idle cores, November 2026:

| scenario | full size | verified after, s | target, s |
|---|---|---|---|
| shapes | 10 000 gangs, 500 nodes | 2.4 | 3 |
| shapes | 2 500 gangs, 125 nodes | 0.6 | 0.8 |
| queues | 1 000 | 1.0 | 1 |
| resources | 500 | 1.3 | 1.5 |
| priorities | 2 000 | 0.9 | 1.5 |
| one-gang | 5 000 pods | 2.3 | 5 |
| anti-affinity | 2 687 pods, 2 000 nodes | 0.4 | 1 |
| urgent | 100 gangs, 1 000 nodes | 1.2 | 2 |

`python -m bench.growth --profile NAME` prints a profile of one scenario.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import pstats
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optsched.cli.base.session_context import collect_less
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Gang, GangPhase, Node, Queue, Snapshot
from optsched.cluster.task import PodTerm, Task, TaskShape, TaskStatus
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import WorkerProcess
from optsched.units import CPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.session.session import Report

POLICY = load_policy("volcano-default", Path.read_text)
LIMITS = Limits(budget_ms=400)
PERIOD_MS = 1000
HOSTNAME = "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"
MIB, GIB = 2**20, 2**30


class MonotonicClock:
    """The clock of the machine, which a live scheduler uses too."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()


# --- scenarios -----------------------------------------------------------------------------------


def different_shapes(num_gangs: int) -> Snapshot:
    """Return gangs of 1 to 4 equal pods, each with its own task class, 20 gangs per node."""
    rng = np.random.default_rng(1)
    gangs = []
    for g in range(num_gangs):
        request = {CPU: 500 + g, MEMORY: int(rng.integers(256, 16_384)) * MIB}
        if rng.random() < 0.5:
            request[GPU] = int(rng.choice((1, 2, 4)))
        shapes = [_shape(request)] * int(rng.integers(1, 5))
        gangs.append(_waiting(g, shapes, f"q{g % 8}", int(rng.choice((1, 2, 4)))))
    return _snapshot(_nodes(num_gangs // 20), gangs, [Queue(f"q{q}") for q in range(8)])


def deep_queues(num_queues: int) -> Snapshot:
    """Return a queue tree of depth five, with 4.6 pods per queue, a third of them running.

    Only leaf queues have pods.
    """
    rng = np.random.default_rng(2)
    names = [f"q{q:05d}" for q in range(num_queues)]
    widths = np.cumsum([1, 2, 4, 8])  # sizes of the first four depths, in 31sts
    ends = [max(int(num_queues * w / 31), d + 1) for d, w in enumerate(widths.tolist())]
    queues, parents = [], set()
    for q, name in enumerate(names):
        depth = int(np.searchsorted(ends, q, side="right"))
        parent = "root"
        if depth:
            low, high = (ends[depth - 2] if depth > 1 else 0), ends[depth - 1]
            parent = names[int(rng.integers(low, high))]
            parents.add(parent)
        queues.append(Queue(name, weight=int(rng.integers(1, 5)), parent=parent))
    leaves = [name for name in names if name not in parents]
    nodes = _nodes(num_queues // 8)
    kinds = [_shape({CPU: 1000 * c, MEMORY: 4 * c * GIB}) for c in (2, 4, 8, 16)]
    left = int(4.6 * num_queues)
    gangs: list[Gang] = []
    running: list[Task] = []
    while left > 0:
        size = min(int(rng.integers(1, 9)), left)
        left -= size
        shape, queue = kinds[int(rng.integers(4))], leaves[int(rng.integers(len(leaves)))]
        gang = _waiting(len(gangs), [shape] * size, queue, int(rng.choice((1, 2, 4))))
        if rng.random() < 1 / 3:
            gang = _running(gang, nodes, int(rng.integers(len(nodes))))
            running.extend(gang.tasks)
        gangs.append(gang)
    return _snapshot(_with_residents(nodes, running), gangs, queues)


def many_resources(num_resources: int) -> Snapshot:
    """Return a node per resource name, and 8 pods per node that each request one resource."""
    rng = np.random.default_rng(3)
    names = [f"vendor.example/device-{r:04d}" for r in range(num_resources)]
    nodes = []
    for n in range(num_resources):
        offers = {names[int(r)]: 8 for r in rng.choice(num_resources, 4, replace=False)}
        nodes.append(_node(n, offers))
    gangs = []
    for g in range(2 * num_resources):
        name = names[int(rng.integers(num_resources))]
        cpus = int(rng.choice((1, 2, 4)))
        request = {CPU: 1000 * cpus, MEMORY: 4 * cpus * GIB, name: int(rng.choice((1, 2)))}
        gangs.append(_waiting(g, [_shape(request)] * 4, f"q{g % 8}", int(rng.choice((1, 2, 4)))))
    return _snapshot(nodes, gangs, [Queue(f"q{q}") for q in range(8)])


def many_priorities(num_priorities: int) -> Snapshot:
    """Return one gang per priority, and a node per ten gangs. About half of the gangs fit."""
    rng = np.random.default_rng(4)
    kinds = [_shape({CPU: 1000 * c, MEMORY: 4 * c * GIB}) for c in (2, 4, 8, 16)]
    gangs = []
    for g in range(num_priorities):
        shape, size = kinds[int(rng.integers(4))], int(rng.integers(1, 5))
        gangs.append(_waiting(g, [shape] * size, f"q{g % 8}", g + 1))
    return _snapshot(_nodes(num_priorities // 10), gangs, [Queue(f"q{q}") for q in range(8)])


def one_gang(num_pods: int) -> Snapshot:
    """Return one gang of different pods, and a node for every five pods."""
    rng = np.random.default_rng(5)
    shapes = [
        _shape({CPU: 1000 + i, MEMORY: int(rng.integers(1024, 65_536)) * MIB})
        for i in range(num_pods)
    ]
    return _snapshot(_nodes(num_pods // 5), [_waiting(0, shapes, "q0", 1)], [Queue("q0")])


def anti_affinity(num_nodes: int) -> Snapshot:
    """Return services of 1 to 60 pods with anti-affinity between their pods, 1.34 pods per node."""
    rng = np.random.default_rng(6)
    gangs: list[Gang] = []
    left = int(1.3435 * num_nodes)
    while left > 0:
        size = min(int(rng.integers(1, 61)), left)
        left -= size
        app = f"app-{len(gangs):04d}"
        term = PodTerm(
            LabelSelector((Requirement("app", Operator.IN, (app,)),)), ("jobs",), None, HOSTNAME
        )
        cpus = int(rng.choice((2, 4, 8)))
        shape = TaskShape(((CPU, 1000 * cpus), (MEMORY, 4 * cpus * GIB)), pod_anti_affinity=(term,))
        gang = _waiting(len(gangs), [shape] * size, f"q{len(gangs) % 8}", 1, {"app": app})
        gangs.append(gang)
    return _snapshot(_nodes(num_nodes), gangs, [Queue(f"q{q}") for q in range(8)])


def urgent(num_nodes: int) -> Snapshot:
    """Return nodes full of priority-1 pods, and an urgent gang of 4 × 2 GPUs per ten nodes."""
    nodes = _nodes(num_nodes)
    gangs: list[Gang] = []
    running: list[Task] = []
    one = _shape({CPU: 12_000, MEMORY: 96 * GIB, GPU: 1})
    for n in range(num_nodes):
        for _ in range(2):
            gang = _running(_waiting(len(gangs), [one] * 4, "q0", 1), nodes[n : n + 1], 0)
            gangs.append(gang)
            running.extend(gang.tasks)
    two = _shape({CPU: 24_000, MEMORY: 192 * GIB, GPU: 2})
    for _ in range(num_nodes // 10):
        gangs.append(_waiting(len(gangs), [two] * 4, "q0", 100))
    return _snapshot(_with_residents(nodes, running), gangs, [Queue("q0")])


def _shape(request: dict[str, int]) -> TaskShape:
    return TaskShape(tuple(sorted(request.items())))


def _node(number: int, offers: dict[str, int]) -> Node:
    name = f"node-{number:06d}"
    offered = {CPU: 96_000, MEMORY: 768 * GIB, PODS: 110, **offers}
    labels = {HOSTNAME: name}
    return Node(name, tuple(sorted(offered.items())), labels=labels)


def _nodes(number: int) -> list[Node]:
    return [_node(n, {GPU: 8}) for n in range(number)]


def _waiting(
    number: int,
    shapes: Sequence[TaskShape],
    queue: str,
    priority: int,
    labels: dict[str, str] | None = None,
) -> Gang:
    key = f"jobs/gang-{number:06d}"
    tasks = tuple(
        Task(
            f"{key}-{i:04d}",
            shape,
            TaskStatus.PENDING,
            uid=f"{key}-{i:04d}",
            gang=key,
            index=i,
            priority=priority,
            labels=labels or {},
        )
        for i, shape in enumerate(shapes)
    )
    return Gang(
        key,
        queue=queue,
        min_member=len(tasks),
        priority=priority,
        created_ms=number,
        waiting_since_ms=number,
        phase=GangPhase.INQUEUE,
        tasks=tasks,
    )


def _running(gang: Gang, nodes: Sequence[Node], first: int) -> Gang:
    tasks = tuple(
        replace(t, status=TaskStatus.RUNNING, node=nodes[(first + i) % len(nodes)].name)
        for i, t in enumerate(gang.tasks)
    )
    return replace(gang, tasks=tasks, phase=GangPhase.RUNNING)


def _with_residents(nodes: Iterable[Node], running: Iterable[Task]) -> list[Node]:
    residents: dict[str, list[Task]] = {}
    for task in running:
        residents.setdefault(task.node, []).append(task)
    return [replace(n, residents=tuple(residents.get(n.name, ()))) for n in nodes]


def _snapshot(nodes: Sequence[Node], gangs: Sequence[Gang], queues: Sequence[Queue]) -> Snapshot:
    every = sorted([*queues, Queue("default"), Queue("root")], key=lambda q: q.name)
    return Snapshot(1_000_000, tuple(nodes), tuple(gangs), tuple(every))


# --- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A cluster that grows along one axis.

    Attributes
    ----------
    name
        The quantity that grows.
    snapshot
        The function that returns the cluster of a size, always the same for the same size.
    size
        The full size.
    target_s
        The target for the wall time in seconds at full size on an idle machine.
    period_ms
        The period of the session, which must be long enough for all gangs.

    """

    name: str
    snapshot: Callable[[int], Snapshot]
    size: int
    target_s: float
    period_ms: int = PERIOD_MS


SCENARIOS = {
    "shapes": Scenario(
        "gangs of different task classes, 20 per node", different_shapes, 10_000, 3.0, 3500
    ),
    "fewer-shapes": Scenario(
        "gangs of different task classes, 20 per node", different_shapes, 2500, 0.8
    ),
    "queues": Scenario("queues five deep, 4.6 pods per queue", deep_queues, 1000, 1.0),
    "resources": Scenario("resource names and nodes, 8 pods per name", many_resources, 500, 1.5),
    "priorities": Scenario("priority classes, one gang of each", many_priorities, 2000, 1.5),
    "one-gang": Scenario("different pods in one gang, 5 per node", one_gang, 5000, 5.0),
    "anti-affinity": Scenario(
        "nodes, 1.34 pods with anti-affinity per node", anti_affinity, 2000, 1.0
    ),
    "urgent": Scenario("full nodes, one urgent gang per ten nodes", urgent, 1000, 2.0),
}


@dataclass(frozen=True)
class Measured:
    """The wall time, CPU time and report of one session."""

    wall_s: float
    cpu_s: float
    report: Report

    @property
    def verified_s(self) -> float:
        """The wall seconds from the snapshot to the verified plan, without waiting reasons and
        bounds.
        """
        seconds = self.report.trace.seconds
        return self.wall_s - seconds.get("explain", 0.0) - seconds.get("bound", 0.0)


def measure(snapshot: Snapshot, solver: WorkerProcess, period_ms: int) -> Measured:
    """Run one session as the live scheduler does, and verify its plan."""
    around = SessionContext(
        clock=MonotonicClock(), solver=solver, limits=LIMITS, period_ms=period_ms
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    report = run_session(snapshot, POLICY, around)
    measured = Measured(time.perf_counter() - wall_s, time.process_time() - cpu_s, report)
    plan = report.plan
    assert report.trace.violations == ()
    assert not verify_actions(snapshot, plan.actions, POLICY.rules)
    return measured


def digest(plan: Plan) -> str:
    """Return a short fingerprint of the actions and waiting reasons of a plan."""
    text = repr((plan.actions, sorted(plan.pending.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def describe(measured: Measured) -> str:
    """Describe the number of binds and actions, the solver's outcome and the time of each phase."""
    plan = measured.report.plan
    phases = " ".join(f"{k} {v:.2f}" for k, v in measured.report.trace.seconds.items())
    stopped = f"{plan.certificate.engine}: {plan.certificate.stopped}"
    return f"{len(plan.binds)} binds, {len(plan.actions)} actions; {stopped}; {phases}"


def main(arguments: Sequence[str]) -> None:
    """Print a table of the named scenarios, or of all scenarios if no name is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--profile", action="store_true", help="print a profile")
    parser.add_argument("--size", type=int, help="one size instead of half and full")
    options = parser.parse_args(arguments)
    collect_less()
    worker = WorkerProcess()
    worker.wait_until_ready()
    for name in options.names or SCENARIOS:
        scenario = SCENARIOS[name]
        full = options.size or scenario.size
        sizes = (full,) if options.profile or options.size else (full // 2, full)
        cpu = []
        for size in sizes:
            snapshot = scenario.snapshot(size)
            profile = cProfile.Profile(time.process_time)
            worker.wait_until_ready()
            gc.collect()
            with profile if options.profile else nullcontext():
                measured = measure(snapshot, worker, scenario.period_ms)
            cpu.append(measured.cpu_s)
            verified = f"verified after {measured.verified_s:6.2f}"
            figures = f"{verified} wall {measured.wall_s:6.2f} cpu {measured.cpu_s:6.2f}"
            target = f" target {scenario.target_s}" if size == scenario.size else ""
            print(f"{size:6} {scenario.name:45} {figures}{target}")
            print(f"       {describe(measured)}; plan {digest(measured.report.plan)}", flush=True)
            if options.profile:
                pstats.Stats(profile).sort_stats("cumulative").print_stats(70)
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        if len(cpu) > 1:
            print(f"       growth from half the size: {cpu[1] / cpu[0]:.2f}", flush=True)
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1:])
