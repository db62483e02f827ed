"""The plugin `extender`: calls an external HTTP service, or replays recorded replies.

Mathematics: models/formulation/extender.md. The rule makes all calls through an interface
(`Outside`). In a live session, `Outside` calls the service and records the replies. If the snapshot
contains recorded calls, `Outside` replays their replies and does not call the service.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.declaration import Argument, Kind, Plugin, read_duration_ms, read_names
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.snapshot import Gang, Node, Queue
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem


NO_RECORD = "no reply has been recorded, and offline sessions make no calls"


class Verb(StrEnum):
    """The kinds of service calls; a value is a Volcano argument name without its suffix `Verb`."""

    PREDICATE = "predicate"
    PRIORITIZE = "prioritize"
    PREEMPTABLE = "preemptable"
    RECLAIMABLE = "reclaimable"
    QUEUE_OVERUSED = "queueOverused"
    JOB_ENQUEUEABLE = "jobEnqueueable"
    JOB_ENQUEUED = "jobEnqueued"
    JOB_READY = "jobReady"
    SESSION_OPEN = "onSessionOpen"
    SESSION_CLOSE = "onSessionClose"
    ALLOCATE = "allocateFunc"
    DEALLOCATE = "deallocateFunc"


@dataclass(frozen=True, slots=True)
class Question:
    """A call to an external service.

    Attributes
    ----------
    verb
        The kind of call, which determines the other attributes that are set.
    task
        The pending task for which the call is made; the reply applies to all equal tasks. In calls
        about victims, `task` is the preempting task.
    nodes
        Candidate nodes for the task.
    victims
        Running tasks for which the service decides whether they may be evicted.
    gang, queue
        The gang or the queue for which the call is made.
    placed
        Number of tasks of the gang that have been placed so far.

    """

    verb: Verb
    task: Task | None = None
    nodes: tuple[Node, ...] = ()
    victims: tuple[Task, ...] = ()
    gang: Gang | None = None
    queue: Queue | None = None
    placed: int = 0

    @property
    def text(self) -> str:
        """The key of the call in a recording: its verb and the names of its objects."""
        words = [
            self.verb.value,
            self.task.key if self.task is not None else "",
            self.gang.key if self.gang is not None else "",
            self.queue.name if self.queue is not None else "",
            str(self.placed) if self.placed else "",
            *(victim.key for victim in self.victims),
        ]
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a call.

    Attributes
    ----------
    fields
        The content of the reply, validated by the code that calls the service.
    failure
        Why the call failed; empty if the service has replied.

    """

    fields: Mapping[str, object] = field(default_factory=dict)
    failure: str = ""

    @property
    def text(self) -> str:
        """The reply as JSON, in the form in which a recording stores it."""
        kept = {"failure": self.failure} if self.failure else dict(self.fields)
        return json.dumps(kept, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Reply:
        """Parse a recorded reply; raises `ValueError` if `text` is not a JSON object."""
        try:
            found = json.loads(text)
        except RecursionError as e:
            raise ValueError("nested too deep") from e
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, not {text:.40}")
        return cls(failure=str(found["failure"])) if "failure" in found else cls(found)


class Outside(Protocol):
    """The interface through which a rule calls an external service."""

    def send_question(self, question: Question) -> Reply:
        """Send a call to the service and return its reply, or a failure after the timeout."""


class Recording:
    """Replays the recorded replies to each call in order, and then repeats the last one.

    A call without a recorded reply fails.
    """

    def __init__(self, entries: Iterable[tuple[str, str]] = ()) -> None:
        self._replies: dict[str, list[Reply]] = {}
        for question, reply in entries:
            self._replies.setdefault(question, []).append(Reply.read(reply))

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        replies = self._replies.get(question.text)
        if not replies:
            return Reply(failure=NO_RECORD)
        return replies.pop(0) if len(replies) > 1 else replies[0]


@dataclass(eq=False)
class Recorder:
    """Calls a service and records the replies."""

    _outside: Outside
    _entries: list[tuple[Question, Reply]] = field(default_factory=list, init=False)

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        reply = self._outside.send_question(question)
        self._entries.append((question, reply))
        return reply

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The recorded calls and replies, as the strings that a snapshot stores."""
        return tuple((question.text, reply.text) for question, reply in self._entries)

    @property
    def failures(self) -> Sequence[tuple[str, str]]:
        """The calls that failed for all nodes or for some nodes, as (verb, reason) pairs."""
        found: list[tuple[str, str]] = []
        for question, reply in self._entries:
            by_node = reply.fields.get("failed")
            reasons = by_node.values() if isinstance(by_node, dict) else ()
            if why := reply.failure or str(next(iter(reasons), "")):
                found.append((question.verb.value, why))
        return found


PERMIT, ABSTAIN, REJECT = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Service:
    """The address of an external service, and the timeout of one call in milliseconds."""

    url: str = ""
    timeout_ms: int = 1000


@dataclass
class _Answers:
    """The replies of the service in one session, cached by task class, queue or gang."""

    refusals: dict[TaskShape, Mapping[str, str]] = field(default_factory=dict)
    scores: dict[TaskShape, Mapping[str, float]] = field(default_factory=dict)
    overused: dict[str, bool] = field(default_factory=dict)
    votes: dict[str, int] = field(default_factory=dict)
    ready: dict[tuple[str, int], bool] = field(default_factory=dict)
    victims: dict[tuple[Verb, TaskShape, tuple[str, ...]], frozenset[str] | None] = field(
        default_factory=dict
    )


@dataclass(frozen=True, eq=False)
class Extender(Rule):
    """Lets an external service filter and score nodes, and vote on gangs, queues and victims.

    Attributes
    ----------
    paths
        (verb, path) pairs of all configured calls.
    ignorable
        True if failed calls are ignored. If `ignorable` is False, a gang waits when a call for it
        fails.
    managed
        The resources that the service manages; empty if it manages all. The rule makes calls only
        for tasks that request a managed resource.

    """

    name = "extender"
    hard_switch = Switch.PREDICATE
    mask_lasts = False

    service: Service = Service()
    paths: tuple[tuple[Verb, str], ...] = ()
    ignorable: bool = False
    managed: tuple[str, ...] = ()
    outside: Outside = field(default_factory=Recording)
    _answers: _Answers = field(default_factory=_Answers, init=False, repr=False)

    def is_configured(self, verb: Verb) -> bool:
        """Return whether the policy configures a URL path for the kind of call `verb`."""
        return any(verb is known for known, _ in self.paths)

    def manages(self, request: Amounts) -> bool:
        """Return whether a request contains a managed resource."""
        return not self.managed or any(amount and name in self.managed for name, amount in request)

    def manages_gang(self, gang: Gang) -> bool:
        """Return whether a gang's tasks or its `minResources` request a managed resource."""
        return self.manages(gang.min_resources) or any(
            self.manages(task.shape.request) for task in gang.tasks
        )

    def refusals(self, task: Task, nodes: tuple[Node, ...]) -> Mapping[str, str]:
        """Return, by node name, why the service rejects the node for a task and all equal tasks."""
        if not self.is_configured(Verb.PREDICATE) or not self.manages(task.shape.request):
            return {}
        known = self._answers.refusals
        if task.shape not in known:
            open_nodes = tuple(node for node in nodes if node.ready)
            reply = self.outside.send_question(Question(Verb.PREDICATE, task, open_nodes))
            if reply.failure and not self.ignorable:
                refused = {node.name: reply.failure for node in open_nodes}
            elif reply.failure:
                refused = {}
            else:
                failed = {} if self.ignorable else _texts(reply.fields, "failed")
                refused = {**failed, **_texts(reply.fields, "refused")}
            known[task.shape] = refused
        return known[task.shape]

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`.

        The service's reply for a task applies to all equal tasks.
        """
        for task, _, node in world.placements:
            why = self.refusals(task, world.snapshot.nodes).get(node.name)
            if why is not None:
                yield Violation(self.name, f"task {task.key}", f"node {node.name}: {why}")

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        task = problem.derived(_first_tasks)[task_class]
        refused = {} if task is None else self.refusals(task, problem.snapshot.nodes)
        if not refused:
            return None
        return np.array([n.name not in refused for n in problem.snapshot.nodes], np.bool_)

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        task = problem.derived(_first_tasks)[task_class]
        reasons = (
            [] if task is None else sorted(self.refusals(task, problem.snapshot.nodes).values())
        )
        most = max(reasons, key=reasons.count, default="")
        return f"did not pass the extender ({most})" if most else "did not pass the extender"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. A node that is missing from the service's reply gets the score 0."""
        task = problem.derived(_first_tasks)[task_class]
        if (
            task is None
            or not self.is_configured(Verb.PRIORITIZE)
            or not self.manages(task.shape.request)
        ):
            return None
        known, nodes = self._answers.scores, problem.snapshot.nodes
        if task.shape not in known:
            open_nodes = tuple(node for node in nodes if node.ready)
            reply = self.outside.send_question(Question(Verb.PRIORITIZE, task, open_nodes))
            found = reply.fields.get("scores")
            pairs = found.items() if isinstance(found, dict) else ()
            numbers = {str(k): float(v) for k, v in pairs if isinstance(v, int | float)}
            known[task.shape] = numbers
        scores = known[task.shape]
        if not scores:
            return None
        return np.array([scores.get(node.name, 0.0) for node in nodes], np.float64)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return _Votes(self, problem, ledger) if any(map(self.is_configured, _VOTING)) else None

    def read_vote(self, reply: Reply) -> int:
        """Return the vote in a reply: `PERMIT`, `ABSTAIN` or `REJECT`."""
        if reply.failure:
            return ABSTAIN if self.ignorable else REJECT
        status = reply.fields.get("status", ABSTAIN)
        return int(np.sign(status)) if isinstance(status, int) else ABSTAIN

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`.

        Returns a reason only if every reply in the session reported that the gang is not ready.
        """
        key = outcome.problem.snapshot.gangs[gang].key
        reasons = [ready for (known, _), ready in self._answers.ready.items() if known == key]
        if not reasons or any(reasons):
            return None
        return Reason(ReasonCode.PLUGIN, "the extender does not allow it to start")

    def explain_refusal(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `EnqueueExplanation`."""
        key = outcome.problem.snapshot.gangs[gang].key
        if self._answers.votes.get(key, ABSTAIN) != REJECT:
            return None
        return Reason(ReasonCode.PLUGIN, "the extender does not allow its pods to be created")


_VOTING = (
    Verb.PREEMPTABLE,
    Verb.RECLAIMABLE,
    Verb.QUEUE_OVERUSED,
    Verb.JOB_ENQUEUEABLE,
    Verb.JOB_ENQUEUED,
    Verb.JOB_READY,
)


def _first_tasks(problem: Problem) -> list[Task | None]:
    """Return, for each task class (C,), the task with the smallest key; None for an empty class."""
    found: dict[TaskShape, Task] = {}
    for task in sorted(problem.tasks, key=lambda t: t.key):
        found.setdefault(task.shape, task)
    return [found.get(shape) for shape in problem.classes.shapes]


def _texts(fields: Mapping[str, object], name: str) -> dict[str, str]:
    found = fields.get(name)
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


@dataclass(eq=False)
class _Votes(Greedy):
    _rule: Extender
    _problem: Problem
    _ledger: Ledger

    def enqueue_vote(self, gang: int) -> int:
        rule, candidate = self._rule, self._problem.snapshot.gangs[gang]
        known = rule._answers.votes
        if not rule.is_configured(Verb.JOB_ENQUEUEABLE) or not rule.manages_gang(candidate):
            return ABSTAIN
        if candidate.key not in known:
            reply = rule.outside.send_question(Question(Verb.JOB_ENQUEUEABLE, gang=candidate))
            known[candidate.key] = rule.read_vote(reply)
        return known[candidate.key]

    def record_enqueued(self, gang: int) -> None:
        rule, candidate = self._rule, self._problem.snapshot.gangs[gang]
        if rule.is_configured(Verb.JOB_ENQUEUED) and rule.manages_gang(candidate):
            rule.outside.send_question(Question(Verb.JOB_ENQUEUED, gang=candidate))

    def is_overused(self, queue: int) -> bool:
        rule, problem, known = self._rule, self._problem, self._rule._answers.overused
        found = problem.snapshot.queue_by_name.get(problem.queues.names[queue])
        if found is None or not rule.is_configured(Verb.QUEUE_OVERUSED):
            return False
        if found.name not in known:
            reply = rule.outside.send_question(Question(Verb.QUEUE_OVERUSED, queue=found))
            is_overused = reply.fields.get("overused") is True
            known[found.name] = not rule.ignorable if reply.failure else is_overused
        return known[found.name]

    def holds(self, gang: int) -> bool:
        rule, candidate = self._rule, self._problem.snapshot.gangs[gang]
        known, placed = rule._answers.ready, self._ledger.gang_placed[gang]
        if not rule.is_configured(Verb.JOB_READY) or not rule.manages_gang(candidate):
            return True
        if (candidate.key, placed) not in known:
            question = Question(Verb.JOB_READY, gang=candidate, placed=placed)
            reply = rule.outside.send_question(question)
            is_ready = reply.fields.get("status") is True
            known[candidate.key, placed] = rule.ignorable if reply.failure else is_ready
        return known[candidate.key, placed]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        return self._allowed(Verb.PREEMPTABLE, task_class, victims)

    def reclaimable(self, gang: int, task_class: int, victims: I64) -> I64 | None:
        return self._allowed(Verb.RECLAIMABLE, task_class, victims)

    def _allowed(self, verb: Verb, task_class: int, victims: I64) -> I64 | None:
        """Return the victims that the service allows, or None if the service abstains."""
        rule, task = self._rule, self._problem.derived(_first_tasks)[task_class]
        if task is None or not rule.is_configured(verb) or not rule.manages(task.shape.request):
            return None
        running = running_tasks(self._problem).tasks
        candidates = tuple(running[v] for v in victims.tolist())
        known = rule._answers.victims
        key = (verb, task.shape, tuple(victim.key for victim in candidates))
        if key not in known:
            reply = rule.outside.send_question(Question(verb, task, victims=candidates))
            named = reply.fields.get("victims", ())
            allowed = map(str, named) if isinstance(named, list | tuple) else ()
            known[key] = None if rule.read_vote(reply) == ABSTAIN else frozenset(allowed)
        keys = known[key]
        if keys is None:
            return None
        return victims[np.array([victim.key in keys for victim in candidates], np.bool_)]


_CALLS = (
    (Verb.PREDICATE, "which nodes a task may use"),
    (Verb.PRIORITIZE, "scores of nodes for a task"),
    (Verb.PREEMPTABLE, "which tasks a higher-priority task may preempt (only without the solver)"),
    (Verb.RECLAIMABLE, "which tasks another queue's task may reclaim (only without the solver)"),
    (Verb.QUEUE_OVERUSED, "whether a queue is overused (only without the solver)"),
    (Verb.JOB_ENQUEUEABLE, "whether the pods of a gang may be created"),
    (Verb.JOB_ENQUEUED, "notification that the pods of a gang may be created"),
    (Verb.JOB_READY, "whether a gang may start (only without the solver)"),
    (Verb.SESSION_OPEN, "notification with the whole cluster when a session begins"),
    (Verb.SESSION_CLOSE, "notification that a session has ended"),
    (Verb.ALLOCATE, "notification for every placed task"),
    (Verb.DEALLOCATE, "notification for every evicted task"),
)


PLUGIN = Plugin(
    "extender",
    "calls an external service that filters nodes, scores nodes and votes",
    (
        Argument("extender.urlPrefix", Kind.URL, "", "address of the service"),
        Argument("extender.httpTimeout", Kind.DURATION, "1s", "timeout of one call"),
        *(
            Argument(f"extender.{verb}Verb", Kind.TEXT, "", f"path: {meaning}")
            for verb, meaning in _CALLS
        ),
        Argument("extender.ignorable", Kind.SWITCH, False, "whether failed calls are ignored"),
        Argument(
            "extender.managedResources",
            Kind.NAMES,
            "",
            "if set, calls are made only for tasks that request one of these resources",
        ),
    ),
    lambda arguments: (
        Extender(
            service=Service(
                str(arguments.get("extender.urlPrefix", "")),
                read_duration_ms(arguments, "extender.httpTimeout") or 1000,
            ),
            paths=tuple(
                (verb, path)
                for verb, _ in _CALLS
                if (path := str(arguments.get(f"extender.{verb}Verb", "")).strip("/"))
            ),
            ignorable=bool(arguments.get("extender.ignorable", False)),
            managed=tuple(read_names(arguments, "extender.managedResources")),
        ),
    ),
)
