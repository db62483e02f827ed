"""Measured node load: overloaded nodes get no more pods, and nodes with lower load are preferred.

Mathematics: models/formulation/usage.md. Volcano: `pkg/scheduler/plugins/usage`. The rule estimates
the usage of tasks that started too recently to be measured.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin, read_duration_ms, read_whole
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.units import CPU, MEMORY, PODS, parse_amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Load, Node
    from optsched.cluster.task import TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import LiveScorer
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

TOP = 100.0
MILLION = 1_000_000
MEASURED = (CPU, MEMORY)
FRESH_MS = 5 * 60 * 1000
"""Maximum age of load measurements in milliseconds (Volcano's `MetricsActiveTime`)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The assumed usage of a task that started too recently to be measured.

    Attributes
    ----------
    of_request, of_burst
        The fractions of the request and of the burst that a task is assumed to use. The burst is
        the limit minus the request.
    risky_from
        The node load from which estimates are increased, as a fraction of the node's capacity.
    risk_factor
        The factor by which estimates are increased.
    idle_cpu_m, idle_memory
        The assumed usage of a task that requests nothing: CPU in milli-CPU, memory in bytes.

    """

    of_request: float = 0.7
    of_burst: float = 0.0
    risky_from: float = 0.6
    risk_factor: float = 1.2
    idle_cpu_m: int = 250
    idle_memory: int = 200 * 2**20


@dataclass(frozen=True)
class Usage(Rule):
    """Rule: nodes above a load limit get no more pods, and nodes with lower load score higher.

    Attributes
    ----------
    weight
        Weight of the load score among all node scores.
    cpu_weight, memory_weight
        Weights of the CPU load and the memory load in the score.
    cpu_limit_ppm, memory_limit_ppm
        The maximum CPU load and memory load at which a node takes pods, in millionths.
    blind_ms
        Time from the start of a task until its usage has been measured, in milliseconds.

    """

    name = "usage"
    hard_switch = Switch.PREDICATE
    mask_lasts = False

    weight: int = 5
    cpu_weight: int = 1
    memory_weight: int = 1
    cpu_limit_ppm: int = 800_000
    memory_limit_ppm: int = 800_000
    estimate: Estimate = Estimate()
    blind_ms: int = 30_000

    # --- hard ------------------------------------------------------------------------------------

    def describe_excess(self, node: Node, now_ms: int) -> str | None:
        """Return a description of the load limit that a node exceeds; None if there is none."""
        load = find_recent_load(node, now_ms)
        if load is None:
            return None
        if load.cpu_ppm > self.cpu_limit_ppm:
            return f"CPU load is {load.cpu_ppm / 10_000:g}%, above {self.cpu_limit_ppm / 10_000:g}%"
        if load.memory_ppm > self.memory_limit_ppm:
            limit = f"{self.memory_limit_ppm / 10_000:g}%"
            return f"memory load is {load.memory_ppm / 10_000:g}%, above {limit}"
        return None

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            excess = self.describe_excess(node, world.snapshot.taken_ms)
            if excess is not None:
                yield Violation(self.name, f"task {task.key}", f"node {node.name}: {excess}")

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`. The mask is the same for all task classes."""
        allowed = problem.derived(self._allowed)
        return None if allowed.all() else allowed

    def _allowed(self, problem: Problem) -> Bool:
        now_ms = problem.snapshot.taken_ms
        return np.array(
            [self.describe_excess(n, now_ms) is None for n in problem.snapshot.nodes], np.bool_
        )

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        return "had too much load"

    # --- score -----------------------------------------------------------------------------------

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. The scores depend only on the load at the start of the session."""
        if not self._counts(problem):
            return None
        return problem.derived(self.shadow).at_start

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Returns None if no load has been measured."""
        if not self._counts(problem):
            return None
        shadow = problem.derived(self.shadow)
        return _Usage(
            replace(shadow, extra=shadow.extra.copy()),
            shadow.at_start,
            np.zeros(problem.num_nodes),
            [np.array(_requested_amounts(shape)) for shape in problem.classes.shapes],
        )

    def _counts(self, problem: Problem) -> bool:
        measured = problem.derived(_read_loads).is_fresh.any()
        return bool(self.weight and self.cpu_weight + self.memory_weight and measured)

    def shadow(self, problem: Problem) -> _Shadow:
        """Return the measured load plus the estimated usage of recently started tasks."""
        loads = problem.derived(_read_loads)
        shadow = _Shadow(self, loads, np.zeros_like(loads.size), np.zeros(problem.num_nodes))
        now_ms = problem.snapshot.taken_ms
        for n in np.flatnonzero(loads.is_fresh).tolist():
            for task in problem.snapshot.nodes[n].residents:
                # A running task with an unknown start time is assumed to be recent.
                recent = not task.started_ms or now_ms - task.started_ms < self.blind_ms
                starts = task.status is TaskStatus.RUNNING and recent
                if starts or task.status is TaskStatus.BOUND:
                    shadow.add(n, np.array(_requested_amounts(task.shape)))
        return replace(shadow, at_start=shadow.score(np.arange(problem.num_nodes)))


def find_recent_load(node: Node, now_ms: int) -> Load | None:
    """Return the load of a node, or None if no recent measurement exists."""
    load = node.load
    return None if load is None or now_ms - load.measured_ms > FRESH_MS else load


def _requested_amounts(shape: TaskShape) -> tuple[float, ...]:
    """Return the amounts (5,) from which the usage of a task is estimated.

    The amounts are: CPU request, memory request, CPU burst, memory burst, and the number of other
    resources that the task requests.
    """
    request, burst = dict(shape.request), dict(shape.burst)
    others = sum(1 for name, amount in request.items() if amount and name not in (*MEASURED, PODS))
    return (*(float(part.get(r, 0)) for part in (request, burst) for r in MEASURED), float(others))


@dataclass(frozen=True, eq=False, slots=True)
class _Loads:
    """The measured CPU and memory load of each node.

    Attributes
    ----------
    measured
        (N, 2) load as a fraction of `size`.
    size
        (N, 2) allocatable milli-CPU and bytes of memory.
    is_fresh
        (N,) True for nodes with a recent measurement.

    """

    measured: F64
    size: F64
    is_fresh: Bool


def _read_loads(problem: Problem) -> _Loads:
    nodes, now_ms = problem.snapshot.nodes, problem.snapshot.taken_ms
    found = [find_recent_load(node, now_ms) for node in nodes]
    ppm = [(0, 0) if load is None else (load.cpu_ppm, load.memory_ppm) for load in found]
    size = [(node.offers.get(CPU, 0), node.offers.get(MEMORY, 0)) for node in nodes]
    return _Loads(
        np.array(ppm, np.float64).reshape(-1, 2) / MILLION,
        np.array(size, np.float64).reshape(-1, 2),
        np.array([load is not None for load in found], np.bool_),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Shadow:
    """The CPU and memory usage of nodes: the measured load plus an estimate for unmeasured tasks.

    Attributes
    ----------
    extra
        (N, 2) estimated usage of unmeasured tasks, in milli-CPU and bytes.
    at_start
        (N,) scores of all nodes before the session places tasks.

    """

    rule: Usage
    loads: _Loads
    extra: F64
    at_start: F64

    def add(self, node: int, requested: F64) -> F64:
        """Add the estimated usage (2,) of one more task to a node; return the added amounts.

        `requested` (5,) is the result of `_requested_amounts`.
        """
        estimate = self.rule.estimate
        load = float(self._weigh(self._composite(np.array([node])))[0])
        factor = estimate.risk_factor if load >= estimate.risky_from else 1.0
        if requested.any():
            used = requested[:2] * estimate.of_request + requested[2:4] * estimate.of_burst
            added = np.minimum(used * factor, requested[:2] + requested[2:4])
        else:
            added = np.array([estimate.idle_cpu_m, estimate.idle_memory], np.float64) * factor
        self.extra[node] += added
        return added

    def _composite(self, nodes: I64) -> F64:
        """Return the used fractions (m, 2) of CPU and memory of m nodes."""
        size = self.loads.size[nodes]
        known = size > 0
        extra = self.extra[nodes] / np.where(known, size, 1)
        found: F64 = np.clip((self.loads.measured[nodes] + extra) * known, 0, 1)
        return found

    def _weigh(self, parts: F64) -> F64:
        weights = np.array([self.rule.cpu_weight, self.rule.memory_weight], np.float64)
        found: F64 = parts @ weights / max(weights.sum(), 1)
        return found

    def score(self, nodes: I64) -> F64:
        """Return the scores (m,) of m nodes; 0 for nodes without a recent measurement."""
        free = self._weigh(1 - self._composite(nodes))
        found: F64 = np.where(self.loads.is_fresh[nodes], free * TOP * self.rule.weight, 0.0)
        return found


@dataclass(eq=False)
class _Usage(Greedy):
    """Tracks how node scores change as tasks are placed.

    Attributes
    ----------
    _before, _gain
        (N,) scores before the session places tasks, and (N,) changes of the scores since then.
    _requested_amounts
        (C,) requests of each task class, from the function `_requested_amounts`.
    _added
        The estimated usage of each task placed in this session, by task class and node.

    """

    _shadow: _Shadow
    _before: F64
    _gain: F64
    _requested_amounts: Sequence[F64]
    _added: dict[tuple[int, int], list[F64]] = field(
        default_factory=lambda: defaultdict(list), init=False
    )

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        return lambda nodes: self._gain

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            added = self._added[task_class, node]
            for _ in range(count):
                added.append(self._shadow.add(node, self._requested_amounts[task_class]))
            for _ in range(min(-count, len(added))):
                self._shadow.extra[node] -= added.pop()
        self._gain[nodes] = self._shadow.score(nodes) - self._before[nodes]


PLUGIN = Plugin(
    "usage",
    "prefers nodes with low measured load and skips overloaded nodes",
    (
        Argument("usage.weight", Kind.WHOLE, 5, "weight of the whole score"),
        Argument("cpu.weight", Kind.WHOLE, 1, "weight of CPU in the score"),
        Argument("memory.weight", Kind.WHOLE, 1, "weight of memory in the score"),
        Argument(
            "thresholds",
            Kind.MAPPING,
            "",
            "load above which a node gets no more pods, in percent",
            fields=(
                Argument("cpu", Kind.NUMBER, 80, "CPU load, in percent"),
                Argument("mem", Kind.NUMBER, 80, "memory load, in percent"),
            ),
        ),
        Argument(
            "estimator",
            Kind.MAPPING,
            "",
            "assumed usage of pods that have not been measured yet",
            fields=(
                Argument("request_ratio", Kind.NUMBER, 0.7, "assumed fraction of the request"),
                Argument(
                    "burst_ratio",
                    Kind.NUMBER,
                    0,
                    "assumed usage as a fraction of limit minus request",
                ),
                Argument(
                    "risk_threshold",
                    Kind.NUMBER,
                    0.6,
                    "node load from which estimates are increased, as a fraction",
                ),
                Argument(
                    "risk_factor",
                    Kind.NUMBER,
                    1.2,
                    "factor by which estimates are increased",
                    least=1,
                ),
                Argument(
                    "best_effort",
                    Kind.MAPPING,
                    "",
                    "assumed usage of pods that request nothing",
                    fields=(
                        Argument("cpu", Kind.QUANTITY, "250m", "CPU use"),
                        Argument("mem", Kind.QUANTITY, "200Mi", "memory use"),
                    ),
                ),
            ),
        ),
    ),
    lambda arguments: (
        Usage(
            weight=read_whole(arguments, "usage.weight", 5),
            cpu_weight=read_whole(arguments, "cpu.weight", 1),
            memory_weight=read_whole(arguments, "memory.weight", 1),
            cpu_limit_ppm=round(float(arguments.get("thresholds.cpu", 80)) * 10_000),
            memory_limit_ppm=round(float(arguments.get("thresholds.mem", 80)) * 10_000),
            estimate=Estimate(
                of_request=float(arguments.get("estimator.request_ratio", 0.7)),
                of_burst=float(arguments.get("estimator.burst_ratio", 0)),
                risky_from=float(arguments.get("estimator.risk_threshold", 0.6)),
                risk_factor=float(arguments.get("estimator.risk_factor", 1.2)),
                idle_cpu_m=parse_amount(CPU, arguments.get("estimator.best_effort.cpu", "250m")),
                idle_memory=parse_amount(
                    MEMORY, arguments.get("estimator.best_effort.mem", "200Mi")
                ),
            ),
            blind_ms=read_duration_ms(arguments, "metrics.interval") or 30_000,
        ),
    ),
)
