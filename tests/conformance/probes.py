"""Asks a face of our rules what Volcano was asked, and compares the answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optsched.domain.cluster import Gang, Queue, Snapshot
from optsched.domain.task import TaskStatus
from optsched.engines.greedy.book import scorers_of
from optsched.engines.greedy.faces import Faces
from optsched.engines.masks import static_mask
from optsched.problem.compile import compile_problem
from optsched.rules.ledger import Ledger
from optsched.units import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.domain.task import Task
    from optsched.policy import Policy
    from tests.conformance.scenarios import Scenario

TOLERANCE = 1e-6
TWIN = "probed"
"""Namespace of the gang that holds a copy of the task that is asked about."""


class NoFaceError(AssertionError):
    """A question that none of our rules is asked."""


class Desk:
    """Answers questions about one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._snapshot = scenario.snapshot()
        self._policy = scenario.policy()
        self._plain = Asked(self._snapshot, self._policy)
        self._twins: dict[str, Asked] = {}

    def wrong(self, probe: Mapping[str, Any]) -> Iterator[str]:
        """How our answer to a probe differs; nothing where it does not."""
        ask = _QUESTIONS.get(probe["fn"])
        if ask is None:
            raise NoFaceError(f"nobody is asked {probe['fn']}")
        ours = ask(self, probe)
        theirs = _answer(probe)
        if isinstance(theirs, float) and isinstance(ours, float):
            same = math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        else:
            same = ours == theirs
        if not same:
            what = probe.get("task") or probe.get("job", "")
            yield f"{probe['fn']}({what}, {probe.get('node', '')}) = {ours}, Volcano says {theirs}"

    # --- questions -------------------------------------------------------------------------------

    def score(self, probe: Mapping[str, Any]) -> float:
        """The sum of the scores of one node for one task."""
        return self._twin(probe["task"]).score(probe["node"])

    def fits(self, probe: Mapping[str, Any]) -> bool:
        """Whether the predicates let a task come to a node."""
        return self._twin(probe["task"]).allows(probe["node"])

    def may_enqueue(self, probe: Mapping[str, Any]) -> bool:
        """Whether the votes let a gang in."""
        asked, key = self._about(probe["job"])
        return asked.faces.may_enqueue(asked.gang(key))

    def enqueued(self, probe: Mapping[str, Any]) -> None:
        """Tells the rules that a gang has been let in; there is no answer."""
        self._plain.faces.enqueued(self._plain.gang(probe["job"]))

    def comes_first(self, probe: Mapping[str, Any]) -> bool:
        """Whether one gang comes before another, before age and names decide."""
        gangs = [_described(probe[side], side) for side in ("left", "right")]
        asked = Asked(_with_gangs(self._snapshot, *gangs), self._policy)
        left, right = (asked.faces.gang_key(asked.gang(g.key)) for g in gangs)
        return left < right

    # --- who is asked about ----------------------------------------------------------------------

    def _twin(self, task: str) -> Asked:
        """The scenario with a pending copy of a task, which may be on a node already."""
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
    """A snapshot, compiled, with the rules' faces opened."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._problem = compile_problem(snapshot)
        self._rules = policy.rules
        self.faces = Faces(self._problem, policy.rules, Ledger(self._problem))

    def gang(self, key: str) -> int:
        return [g.key for g in self._problem.snapshot.gangs].index(key)

    def _node(self, name: str) -> int:
        return [n.name for n in self._problem.snapshot.nodes].index(name)

    def _class(self) -> int:
        """The class of the copied task."""
        (task,) = (i for i, t in enumerate(self._problem.tasks) if t.gang.startswith(f"{TWIN}/"))
        return int(self._problem.task_class[task])

    def score(self, node: str) -> float:
        problem, rules, task_class = self._problem, self._rules.scoring, self._class()
        scorers = scorers_of(problem, rules, task_class)
        bases = [b for r in rules if (b := r.class_score(problem, task_class)) is not None]
        n = self._node(node)
        live = sum(float(s(problem.used, problem.allocatable)[n]) for s in scorers)
        return live + sum(float(b[n]) for b in bases)

    def allows(self, node: str) -> bool:
        n, task_class = self._node(node), self._class()
        fixed = static_mask(self._problem, self._rules.masking, task_class)
        live = self.faces.live_mask(task_class)
        return all(mask is None or bool(mask[n]) for mask in (fixed, live))


_QUESTIONS = {
    "NodeOrderFn": Desk.score,
    "PredicateFn": Desk.fits,
    "JobEnqueueable": Desk.may_enqueue,
    "JobEnqueued": Desk.enqueued,
    "JobOrderFn": Desk.comes_first,
}


def _answer(probe: Mapping[str, Any]) -> float | bool | None:
    if "score" in probe:
        return float(probe["score"])
    if "value" in probe:
        return bool(probe["value"])
    return bool(probe["result"]["ok"]) if "result" in probe else None


def _copy(gang: Gang, task: Task) -> Gang:
    key = f"{TWIN}/{gang.name}"
    pending = replace(task, key=f"{TWIN}/{task.name}", gang=key, status=TaskStatus.PENDING, node="")
    return replace(gang, key=key, min_member=0, min_role=(), min_resources=(), tasks=(pending,))


def _described(job: Mapping[str, Any], name: str) -> Gang:
    """A gang of a job that stands in no list of objects."""
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
