"""Call the extension points of rules with Volcano's recorded arguments, and compare the results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.cluster.task import Task, TaskShape, TaskStatus
from optsched.cluster.topology import sub_group_of
from optsched.plugins.accounting import Ledger
from optsched.plugins.eviction.entitled import GANG_PREEMPT, GANG_RECLAIM, PREEMPT, RECLAIM
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.problem.compile import compile_problem
from optsched.problem.running import running_tasks
from optsched.solver.greedy.nodes import scorers_of
from optsched.solver.greedy.placement import PlacementState
from optsched.solver.greedy.plugins import GreedyPlugins
from optsched.solver.greedy.preemption import GreedyPreemption
from optsched.solver.greedy.queue_order import GangClasses, GangOrder
from optsched.solver.model.node_masks import static_mask
from optsched.solver.shuffle import shuffle
from optsched.units import parse_duration_ms
from tests.conformance.scenarios import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from optsched.policy import Policy
    from optsched.problem.arrays import I64
    from tests.conformance.scenarios import Scenario

    Switch: TypeAlias = Callable[[GreedyPlugins, int, int, I64], I64]

TOLERANCE = 1e-6
TOP_HYPERNODE = "<cluster-top-hypernode>"
TWIN = "probed"
"""The namespace of the gang with a copy of the probed task."""


class NoFaceError(AssertionError):
    """An error for a probe of an extension point that no rule has."""


class Desk:
    """A runner of the probes of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._snapshot = scenario.snapshot()
        self._policy = scenario.policy()
        self._plain = Asked(self._snapshot, self._policy)
        self._twins: dict[str, Asked] = {}

    def wrong(self, probe: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence if the result of a probe differs from Volcano's result."""
        ask = _QUESTIONS.get(probe["fn"])
        if ask is None:
            raise NoFaceError(f"nobody is asked {probe['fn']}")
        ours = ask(self, probe)
        theirs = _answer(probe)
        if not _same(ours, theirs):
            what = probe.get("task") or probe.get("job", "")
            yield f"{probe['fn']}({what}, {probe.get('node', '')}) = {ours}, Volcano says {theirs}"

    # --- probes ----------------------------------------------------------------------------------

    def score(self, probe: Mapping[str, Any]) -> float:
        """Return the sum of the scores of one node for one task."""
        return self._twin(probe["task"]).score(probe["node"])

    def node_scores(self, probe: Mapping[str, Any]) -> dict[str, float]:
        """Return the topology scores of nodes for one task.

        The scores depend on the HyperNode that already contains the task's gang, if any.
        """
        asked = self._twin(probe["task"])
        gang = next(g for g in self._snapshot.gangs if probe["task"] in {t.key for t in g.tasks})
        near = asked.nearness(probe.get("taskJobAllocatedHyperNode", ""), gang)
        return {n: asked.score(n) if near is None else near[n] for n in probe["nodes"]}

    def hypernode_scores(self, probe: Mapping[str, Any]) -> dict[str, float]:
        """Return the scores of HyperNodes for a subgroup of a gang."""
        namespace, gang, group = probe["subJob"].split("/")
        scores = self._plain.domain_scores(f"{namespace}/{gang}", group)
        return {name: scores[name] for name in probe["hyperNodes"]}

    def fits(self, probe: Mapping[str, Any]) -> bool:
        """Return whether the predicates allow a task on a node."""
        return self._twin(probe["task"]).allows(probe["node"])

    def may_enqueue(self, probe: Mapping[str, Any]) -> bool:
        """Return whether the votes of the rules let a gang be enqueued."""
        asked, key = self._about(probe["job"])
        return asked.plugins.may_enqueue(asked.gang(key))

    def enqueued(self, probe: Mapping[str, Any]) -> None:
        """Notify the rules that a gang is enqueued."""
        self._plain.plugins.record_enqueued(self._plain.gang(probe["job"]))

    def comes_first(self, probe: Mapping[str, Any]) -> bool:
        """Return whether one gang precedes another, before age and names break ties."""
        gangs = [_described(probe[side], side) for side in ("left", "right")]
        asked = Asked(_with_gangs(self._snapshot, *gangs), self._policy)
        left, right = (asked.plugins.gang_key(asked.gang(g.key)) for g in gangs)
        return left < right

    def preemptable(self, probe: Mapping[str, Any]) -> list[int]:
        """Return the positions of the candidates that a gang of their queue may evict."""
        return self._victims(probe, _votes(PREEMPT))

    def reclaimable(self, probe: Mapping[str, Any]) -> list[int]:
        """Return the positions of the candidates that a gang of another queue may evict."""
        return self._victims(probe, _votes(RECLAIM))

    def evictable(self, probe: Mapping[str, Any]) -> list[int]:
        """Return the positions of the candidates that an action on whole gangs may evict.

        Kind 1 preempts, and kind 2 reclaims.
        """
        actions = {"1": GANG_PREEMPT, "2": GANG_RECLAIM}
        return self._victims(probe, _votes(actions[probe["kind"]]))

    def moved(self, probe: Mapping[str, Any]) -> list[int] | int:
        """Return the positions of the candidates that may be moved.

        Without candidates, return the number of pods that the action `shuffle` evicts.
        """
        if probe["candidates"]:
            return self._victims(
                probe, lambda plugins, _gang, _class, tasks: plugins.movable(tasks)
            )
        return len(self._plain.moved())

    def victim_order(self, probe: Mapping[str, Any]) -> list[str]:
        """Return the candidates in eviction order."""
        return self._plain.victims_in_order(probe["candidates"])

    def _victims(self, probe: Mapping[str, Any], switch: Switch) -> list[int]:
        keys: list[str] = []
        more: list[dict[str, Any]] = [_MACHINE]
        for number, candidate in enumerate(probe["candidates"]):
            if isinstance(candidate, str):
                keys.append(candidate)
            else:
                more += _running(candidate, number)
                meta = more[-1]["metadata"]
                keys.append(f"{meta['namespace']}/{meta['name']}")
        asks = probe.get("job") or probe.get("task") or {"priority": 0}
        snapshot = self._scenario.snapshot([*self._scenario.objects, *more])
        asked = Asked(_with_gangs(snapshot, _asking(asks["priority"])), self._policy)
        named = asked.named(switch, keys)
        return [number for number, key in enumerate(keys) if key in named]

    # --- probed gangs and tasks ------------------------------------------------------------------

    def _twin(self, task: str) -> Asked:
        """Return the scenario with a pending copy of a task, even if the task has a node."""
        if task not in self._twins:
            gang, found = next(
                (g, t) for g in self._snapshot.gangs for t in g.tasks if t.key == task
            )
            self._twins[task] = Asked(_with_gangs(self._snapshot, _copy(gang, found)), self._policy)
        return self._twins[task]

    def _about(self, job: str | Mapping[str, Any]) -> tuple[Asked, str]:
        if isinstance(job, str):
            return self._plain, job
        gang = _described(job, "job")
        return Asked(_with_gangs(self._snapshot, gang), self._policy), gang.key


class Asked:
    """A compiled snapshot with the opened extension points of the rules."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._problem = compile_problem(snapshot)
        self._rules = policy.rules
        self.plugins = GreedyPlugins(self._problem, policy.rules, Ledger(self._problem))

    def gang(self, key: str) -> int:
        return [g.key for g in self._problem.snapshot.gangs].index(key)

    def _node(self, name: str) -> int:
        return [n.name for n in self._problem.snapshot.nodes].index(name)

    def _class(self) -> int:
        """Return the class of the copied task."""
        (task,) = (i for i, t in enumerate(self._problem.tasks) if t.gang.startswith(f"{TWIN}/"))
        return int(self._problem.task_class[task])

    def score(self, node: str) -> float:
        problem, rules, task_class = self._problem, self._rules.scoring, self._class()
        scorers = scorers_of(problem, rules, task_class)
        bases = [b for r in rules if (b := r.class_score(problem, task_class)) is not None]
        n = self._node(node)
        live = sum(float(s(problem.used, problem.allocatable)[n]) for s in scorers)
        return live + sum(float(b[n]) for b in bases)

    def nearness(self, hypernode: str, gang: Gang) -> dict[str, float] | None:
        """Return the node scores for another task of a gang in a HyperNode.

        Return None for an empty HyperNode name.
        """
        if not hypernode:
            return None
        names = [n.name for n in self._problem.snapshot.nodes]
        forest = self._problem.topology.forests[0]
        on = Counter(t.node for t in gang.tasks)
        share = np.array([on[name] / len(gang.tasks) for name in names])
        scores = self._network().nearness(forest, forest.names.index(hypernode), share)
        return dict(zip(names, scores.tolist(), strict=True))

    def domain_scores(self, key: str, group: str) -> dict[str, float]:
        """Return the scores of HyperNodes for a subgroup of a gang."""
        problem = self._problem
        gang = problem.snapshot.gang_by_key[key]
        mine = [t for t in gang.tasks if _group(gang, t) == group]
        rows = [i for i, t in enumerate(problem.tasks) if t in mine]
        request = problem.classes.request[problem.task_class[rows]].sum(axis=0)
        forest = problem.topology.forests[0]
        scores = self._network().domain_scores(problem, forest, problem.used, request)
        return dict(zip((TOP_HYPERNODE, *forest.names[1:]), scores.tolist(), strict=True))

    def named(self, switch: Switch, keys: Iterable[str]) -> set[str]:
        """Return the given running tasks that may be evicted for the copied task."""
        running = [task.key for task in running_tasks(self._problem).tasks]
        masks = (rule.spares(self._problem) for rule in self._rules.guarding)
        spared = np.any([mask for mask in masks if mask is not None], axis=0)
        asked = np.array([running.index(key) for key in keys], np.int64)
        free = asked[~spared[asked]]
        gang = next(i for i, t in enumerate(self._problem.snapshot.gangs) if _is_twin(t))
        return {running[v] for v in switch(self.plugins, gang, self._class(), free).tolist()}

    def moved(self) -> list[str]:
        """Return the pods that the action `shuffle` evicts."""
        return [eviction.task for eviction in shuffle(self._problem, self._rules)]

    def victims_in_order(self, keys: Iterable[str]) -> list[str]:
        """Return the given running tasks in the order of eviction for a gang of their queue."""
        placing = PlacementState(self._problem, self._rules)
        gang_classes = GangClasses(placing, self._rules)
        order = GangOrder(self._problem, placing.plugins, gang_classes)
        evicting = GreedyPreemption(placing, order, gang_classes)
        running = [task.key for task in running_tasks(self._problem).tasks]
        asked = np.array([running.index(key) for key in keys], np.int64)
        queue = int(running_tasks(self._problem).queue_of[asked[0]])
        return [running[v] for v in evicting.sort_victims(asked, queue).tolist()]

    def _network(self) -> NetworkTopology:
        active = self._rules.find_rule("network-topology")
        assert active is not None
        assert isinstance(active.rule, NetworkTopology)
        return active.rule

    def allows(self, node: str) -> bool:
        n, task_class = self._node(node), self._class()
        fixed = static_mask(self._problem, self._rules.masking, task_class)
        live = self.plugins.fits(-1, task_class, later=False)
        return all(mask is None or bool(mask[n]) for mask in (fixed, live))


_QUESTIONS = {
    "NodeOrderFn": Desk.score,
    "BatchNodeOrderFn": Desk.node_scores,
    "HyperNodeOrderMapFn": Desk.hypernode_scores,
    "PredicateFn": Desk.fits,
    "JobEnqueueable": Desk.may_enqueue,
    "JobEnqueued": Desk.enqueued,
    "JobOrderFn": Desk.comes_first,
    "Preemptable": Desk.preemptable,
    "Reclaimable": Desk.reclaimable,
    "UnifiedEvictable": Desk.evictable,
    "VictimTasks": Desk.moved,
    "BuildVictimsPriorityQueue": Desk.victim_order,
}


def _votes(action: str) -> Switch:
    """Return the function that lists the victims that plugins allow in an action."""
    return lambda plugins, *asked: plugins.find_allowed_victims(action, *asked)


def _answer(probe: Mapping[str, Any]) -> object:
    if "order" in probe:
        return list(probe["order"])
    if "victims" in probe:
        named, candidates = probe["victims"], probe["candidates"]
        places = [n for n, candidate in enumerate(candidates) if candidate in named]
        return places if candidates else len(named)
    return _measured(probe)


def _measured(probe: Mapping[str, Any]) -> float | bool | dict[str, float] | None:
    if "pluginScores" in probe:
        (scores,) = probe["pluginScores"].values()
        return dict(scores)
    if "scores" in probe:
        return dict(probe["scores"])
    if "score" in probe:
        return float(probe["score"])
    if "value" in probe:
        return bool(probe["value"])
    return bool(probe["result"]["ok"]) if "result" in probe else None


def _same(ours: object, theirs: object) -> bool:
    """Return whether two results are equal, except for rounding of numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same(ours.get(k, 0.0), theirs.get(k, 0)) for k in ours | theirs)
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return ours == theirs


def _group(gang: Gang, task: Task) -> str:
    """Return the name that Volcano gives to the subgroup of a task."""
    group = sub_group_of(gang.sub_groups, task.labels)
    return "" if group is None else "-".join((gang.sub_groups[group[0]].name, *group[1]))


def _copy(gang: Gang, task: Task) -> Gang:
    key = f"{TWIN}/{gang.name}"
    pending = replace(task, key=f"{TWIN}/{task.name}", gang=key, status=TaskStatus.PENDING, node="")
    return replace(gang, key=key, min_member=0, min_role=(), min_resources=(), tasks=(pending,))


def _is_twin(gang: Gang) -> bool:
    return gang.namespace == TWIN


def _asking(priority: int) -> Gang:
    """Return a gang with one task that requests victims."""
    key = f"{TWIN}/asks"
    task = Task(f"{key}-0", TaskShape(()), TaskStatus.PENDING, gang=key, priority=priority)
    return Gang(key, min_member=1, priority=priority, tasks=(task,))


_MACHINE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "machine"},
    "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "64"}},
}
"""The node of candidates that are not among the scenario's objects."""


def _running(candidate: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the PodGroup and the pod of a candidate that is not among the scenario's objects."""
    pod = candidate["pod"]
    name = f"{candidate['name']}-{number}"
    notes = {**pod["metadata"].get("annotations", {}), GROUP: name}
    meta = {**pod["metadata"], "name": name, "annotations": notes}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": meta["namespace"]},
        "spec": {"queue": "default"},
    }
    spec = {**pod["spec"], "nodeName": "machine"}
    status = {**pod.get("status", {}), "phase": "Running"}
    return [group, {**pod, "metadata": meta, "spec": spec, "status": status}]


def _described(job: Mapping[str, Any], name: str) -> Gang:
    """Return the gang of a job that is not among the scenario's objects."""
    notes = {}
    if "waitingTime" in job:
        parse_duration_ms(job["waitingTime"])
        notes["volcano.sh/sla-waiting-time"] = job["waitingTime"]
    queue = job["queue"] or "default"
    return Gang(f"{TWIN}/{name}", queue=queue, priority=job["priority"], annotations=notes)


def _with_gangs(snapshot: Snapshot, *gangs: Gang) -> Snapshot:
    queues = {q.name: q for q in snapshot.queues}
    queues |= {g.queue: Queue(g.queue) for g in gangs if g.queue not in queues}
    return replace(
        snapshot,
        gangs=tuple(sorted((*snapshot.gangs, *gangs), key=lambda g: g.key)),
        queues=tuple(queues[name] for name in sorted(queues)),
    )
