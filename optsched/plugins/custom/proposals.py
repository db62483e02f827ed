"""Custom actions, which read a view of the session and return proposals.

A custom action only proposes placements and evictions. The session accepts the proposals that meet
the same rules as the decisions of built-in actions. An error in a custom action does not affect
other actions. See docs/plugins.md.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from optsched.plugins.custom.isolation import HARMFUL, Fault, build_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.custom.isolation import Faults
    from optsched.plugins.declaration import Argument, Value

PROPOSE = "propose"
"""The value of `Fault.point` for faults of custom actions."""


@dataclass(frozen=True, slots=True)
class Place:
    """A proposal to place a pending task on a node; `task` is the task key."""

    task: str
    node: str


@dataclass(frozen=True, slots=True)
class Displace:
    """A proposal to evict a running task so that a gang can use the released capacity.

    `task` is the key of the running task, and `gang` is the key of the gang.
    """

    task: str
    gang: str


Proposal: TypeAlias = Place | Displace


@dataclass(frozen=True)
class View:
    """The read-only view of a session that a custom action gets.

    Attributes
    ----------
    snapshot
        The cluster at the start of the session.
    gangs
        Gangs with unplaced tasks that may be placed, in queue order.
    waiting
        Maps the key of each gang in `gangs` to its unplaced tasks, in task order.
    free
        Idle resources of each node in base units, by node name and resource name.
    placed
        Maps the key of each task that this session has placed so far to its node.
    nominated
        Maps the key of each nominated task to the node on which the task waits for terminating
        pods.
    leaving
        Keys of the running tasks that this session has evicted so far.

    """

    snapshot: Snapshot
    gangs: tuple[Gang, ...]
    waiting: Mapping[str, tuple[Task, ...]]
    free: Mapping[str, Mapping[str, int]]
    placed: Mapping[str, str]
    nominated: Mapping[str, str]
    leaving: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Mapping[str, str]:
        if name != "promised":
            raise AttributeError(f"View has no attribute {name!r}")
        message = "View.promised is deprecated: use nominated"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.nominated


Propose: TypeAlias = "Callable[[View], Iterable[Proposal]]"


@dataclass(frozen=True, slots=True)
class Action:
    """The declaration of a built-in or custom action.

    Attributes
    ----------
    arguments
        The arguments that the `configurations` of a policy may set for the action.
    build
        The function that builds the `Propose` function of a custom action from its arguments; None
        for a built-in action.
    origin
        The file that declares a custom action; empty for a built-in action.

    """

    name: str
    meaning: str
    arguments: tuple[Argument, ...] = ()
    build: Callable[[Mapping[str, Value]], Propose] | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Proposer:
    """A custom action, built with the arguments in the policy."""

    name: str
    propose: Propose

    def list_proposals(self, view: View, faults: Faults) -> tuple[Proposal, ...]:
        """Return the valid proposals of the action; an empty tuple if the action raises.

        Exceptions and returned values that are not proposals are recorded as faults.
        """
        try:
            found: tuple[object, ...] = tuple(self.propose(view))
        except HARMFUL as e:
            faults.add(build_fault(self.name, "", PROPOSE, e))
            return ()
        valid: list[Proposal] = []
        for each in found:
            match each:
                case Place(str(), str()) | Displace(str(), str()):
                    valid.append(each)
                case _:
                    self.record_invalid(
                        f"proposed {each!r}, not a Place or Displace with strings", faults
                    )
        return tuple(valid)

    def record_invalid(self, what: str, faults: Faults) -> None:
        """Record a fault for the invalid proposal that `what` describes."""
        faults.add(Fault(self.name, "", PROPOSE, what, ""))
