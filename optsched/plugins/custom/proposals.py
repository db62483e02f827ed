"""Actions of a user: what they see of a session, and what they may propose.

They propose and do nothing themselves: what they propose is held to the same rules as what the
pipeline comes to by itself, and what raises in them harms nobody. See docs/plugins.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from optsched.plugins.custom.isolation import HARMFUL, Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.custom.isolation import Faults
    from optsched.plugins.declaration import Argument, Value

PROPOSE = "propose"
"""What faults of actions are filed under."""


@dataclass(frozen=True, slots=True)
class Place:
    """Put a waiting task, by key, on a node."""

    task: str
    node: str


@dataclass(frozen=True, slots=True)
class Displace:
    """Let a running task, by key, go so that a gang gets what is proposed for it."""

    task: str
    gang: str


Proposal: TypeAlias = Place | Displace


@dataclass(frozen=True)
class View:
    """A session at the place of an action in the pipeline; nothing of it can be changed.

    Attributes
    ----------
    snapshot
        The cluster as the session began.
    gangs
        Those that may get something now and have tasks left, who is next first.
    waiting
        Their tasks that have nothing yet, in order, by key of the gang.
    free
        What nodes have left, by node and resource, in base units.
    placed
        Node by task of what has been placed before in this session.
    promised
        The same for tasks whose room is about to be freed.
    leaving
        Running tasks that this session has told to go.

    """

    snapshot: Snapshot
    gangs: tuple[Gang, ...]
    waiting: Mapping[str, tuple[Task, ...]]
    free: Mapping[str, Mapping[str, int]]
    placed: Mapping[str, str]
    promised: Mapping[str, str]
    leaving: frozenset[str] = frozenset()


Propose: TypeAlias = "Callable[[View], Iterable[Proposal]]"


@dataclass(frozen=True, slots=True)
class Action:
    """An action by its name in policies.

    Attributes
    ----------
    arguments
        What `configurations` may say about it.
    build
        For an action of a user: makes of its arguments what proposes. None for those that come
        along.
    origin
        Where it comes from; empty for those that come along.

    """

    name: str
    meaning: str
    arguments: tuple[Argument, ...] = ()
    build: Callable[[Mapping[str, Value]], Propose] | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Proposer:
    """An action of a user, made for its arguments."""

    name: str
    propose: Propose

    def ask(self, view: View, faults: Faults) -> tuple[Proposal, ...]:
        """What it proposes; nothing where it raises, and without what is no proposal."""
        try:
            found = tuple(self.propose(view))
        except HARMFUL as e:
            faults.add(fault_of(self.name, "", PROPOSE, e))
            return ()
        for each in found:
            if not _is_proposal(each):
                self.object(f"proposed {each!r}, which is no Place or Displace of names", faults)
        return tuple(each for each in found if _is_proposal(each))

    def object(self, what: str, faults: Faults) -> None:
        """Take note that it proposed what can not be."""
        faults.add(Fault(self.name, "", PROPOSE, what, ""))


def _is_proposal(each: object) -> bool:
    match each:
        case Place(str(), str()) | Displace(str(), str()):
            return True
        case _:
            return False
