"""Calls to external services, and records from which they can be replayed.

A rule asks through a port. Whoever holds a live session puts a service behind it; what it says is
recorded, and a session on a snapshot with that record asks nobody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Node, Queue
    from optsched.cluster.task import Task

NOBODY = "no answer has been recorded, and nobody is asked offline"


class Verb(StrEnum):
    """What may be asked; the values are those of Volcano's arguments without `Verb`."""

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
    """What is asked.

    Attributes
    ----------
    verb
        What it is about, with what follows as far as the verb needs it.
    task
        A pending task: one for all that are alike, or the one that others would be evicted for.
    nodes
        Nodes that it might get.
    victims
        Running tasks that might be evicted.
    gang, queue
        The gang or queue that is asked about.
    placed
        Tasks of the gang that have been placed so far.

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
        """The question in a record: what it is about, by name."""
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
    """What was answered.

    Attributes
    ----------
    fields
        What the answer holds, checked by whoever has asked the service.
    failure
        Why there is no answer; empty where there is one.

    """

    fields: Mapping[str, object] = field(default_factory=dict)
    failure: str = ""

    @property
    def failure_reason(self) -> str:
        """Why a reply, or the reply for some node, is missing; empty if it is there."""
        failed = self.fields.get("failed")
        some = failed.values() if isinstance(failed, dict) else ()
        return self.failure or str(next(iter(some), ""))

    @property
    def text(self) -> str:
        """The reply in a record."""
        kept = {"failure": self.failure} if self.failure else dict(self.fields)
        return json.dumps(kept, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Reply:
        """A reply out of a record; ValueError where it is none."""
        try:
            found = json.loads(text)
        except RecursionError as e:
            raise ValueError("nested too deep") from e
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, not {text:.40}")
        return cls(failure=str(found["failure"])) if "failure" in found else cls(found)


class Outside(Protocol):
    """The port for calls to an external service."""

    def send_question(self, question: Question) -> Reply:
        """Send a question and return the reply within the time limit."""


class Silent:
    """No external service."""

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        return Reply(failure=NOBODY)


class Recording:
    """Replays the replies of a record in order; the last one repeats."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._replies: dict[str, list[Reply]] = {}
        for question, reply in entries:
            self._replies.setdefault(question, []).append(Reply.read(reply))

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        replies = self._replies.get(question.text)
        if not replies:
            return Reply(failure=NOBODY)
        return replies.pop(0) if len(replies) > 1 else replies[0]


class Recorder:
    """Calls a service and records its replies."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._entries: list[tuple[Question, Reply]] = []

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        reply = self._outside.send_question(question)
        self._entries.append((question, reply))
        return reply

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """Questions and replies as a snapshot holds them."""
        return tuple((question.text, reply.text) for question, reply in self._entries)

    @property
    def failures(self) -> Sequence[tuple[str, str]]:
        """(verb, why) of questions that got no answer."""
        return [(q.verb.value, why) for q, r in self._entries if (why := r.failure_reason)]
