"""Custom actions: their view of a session, and their proposals.

A custom action only proposes. Its proposals must meet the same rules as those of built-in actions,
and an error in it does not affect other actions. See docs/plugins.md.
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
"""The extension point in the faults of custom actions."""


@dataclass(frozen=True, slots=True)
class Place:
    """Propose to place a waiting task, by key, on a node."""

    task: str
    node: str


@dataclass(frozen=True, slots=True)
class Displace:
    """Propose to evict a running task, by key, so that a gang gets its proposed nodes."""

    task: str
    gang: str


Proposal: TypeAlias = Place | Displace


@dataclass(frozen=True)
class View:
    """A read-only view of a session when a custom action runs.

    Attributes
    ----------
    snapshot
        The cluster at the beginning of the session.
    gangs
        Gangs with unplaced tasks that may be placed now, in queue order.
    waiting
        Unplaced tasks of these gangs, in order, by gang key.
    free
        Idle amounts by node and resource, in base units.
    placed
        Node by key of each task that this session has placed so far.
    promised
        Node by key of each task that waits there for terminating pods.
    leaving
        Keys of the running tasks that this session has evicted so far.

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
    """The declaration of a built-in or custom action.

    Attributes
    ----------
    arguments
        The arguments that `configurations` of a policy may set for it.
    build
        For a custom action, returns the function that proposes, given the arguments; else None.
    origin
        The file of a custom action; else empty.

    """

    name: str
    meaning: str
    arguments: tuple[Argument, ...] = ()
    build: Callable[[Mapping[str, Value]], Propose] | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Proposer:
    """A custom action that is built with its arguments."""

    name: str
    propose: Propose

    def list_proposals(self, view: View, faults: Faults) -> tuple[Proposal, ...]:
        """Return the valid proposals of the action; empty if it raises.

        An exception and values that are not proposals are recorded as faults.
        """
        try:
            found = tuple(self.propose(view))
        except HARMFUL as e:
            faults.add(fault_of(self.name, "", PROPOSE, e))
            return ()
        for each in found:
            if not _is_proposal(each):
                self.object(f"proposed {each!r}, not a Place or Displace with strings", faults)
        return tuple(each for each in found if _is_proposal(each))

    def object(self, what: str, faults: Faults) -> None:
        """Record that the action proposed something invalid."""
        faults.add(Fault(self.name, "", PROPOSE, what, ""))


def _is_proposal(each: object) -> bool:
    match each:
        case Place(str(), str()) | Displace(str(), str()):
            return True
        case _:
            return False
