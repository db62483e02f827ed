"""Custom actions: what they see of a session, and what they may propose.

They only propose: their proposals are held to the same rules as those of the pipeline, and an error
in them harms no other action. See docs/plugins.md.
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
"""The source of faults of actions."""


@dataclass(frozen=True, slots=True)
class Place:
    """Put a waiting task, by key, on a node."""

    task: str
    node: str


@dataclass(frozen=True, slots=True)
class Displace:
    """Evict a running task, by key, so that a gang gets its proposed nodes."""

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
        Gangs with tasks left that may get something now, the next one first.
    waiting
        Their tasks that have nothing yet, in order, by key of the gang.
    free
        The idle amounts of nodes, by node and resource, in base units.
    placed
        Node by task of what has been placed before in this session.
    promised
        The same for tasks whose room is still being released.
    leaving
        Running tasks that this session has evicted.

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
        The arguments that `configurations` may set for it.
    build
        For an action of a user: makes of its arguments what proposes. None for built-in ones.
    origin
        Its file; empty for built-in ones.

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

    def list_proposals(self, view: View, faults: Faults) -> tuple[Proposal, ...]:
        """Its proposals; empty where it raises, and without values that are no proposals."""
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
