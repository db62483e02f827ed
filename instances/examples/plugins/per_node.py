"""At most so many pods of a gang on a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugin import Argument, Greedy, Kind, Plugin, Rule, Switch, Violation, running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.plugin import I64, Bool, Ledger, NodeModel, Problem, Value, World


@dataclass(frozen=True)
class PerNode(Rule):
    """No node gets a pod of a gang of which it would then have more than `most`."""

    name = "per-node"
    hard_switch = Switch.PREDICATE

    most: int = 1

    def verify(self, world: World) -> Iterator[Violation]:
        """Check a finished plan, from the domain objects alone."""
        gangs = world.snapshot.gangs
        standing = [(g.key, t.node) for g in gangs for t in g.tasks if t.status.is_standing]
        come = [(p.gang.key, p.node.name) for p in (*world.placements, *world.nominations)]
        number = Counter([*standing, *come])
        for gang, node in sorted(set(come)):
            if number[gang, node] > self.most:
                detail = f"{number[gang, node]} pods on {node}, at most {self.most} may be"
                yield Violation(self.name, f"gang {gang}", detail, gang)

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Whether it matters to a task class what else is on a node."""
        return True

    def distinguish_gangs(self, problem: Problem) -> Bool:
        """(G,) gangs that the rows see one by one: all of them."""
        return np.ones(problem.num_gangs, np.bool_)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Σ over a gang's tasks on a node ≤ most − those that run there."""
        if nodes.form is None:
            return
        left = idle_slots(nodes.problem, self.most)
        split = nodes.split_gangs(self.distinguish_gangs(nodes.problem))
        for gang in np.unique(split.gang_of[split.gang_of >= 0]).tolist():
            entries = split.of_gang(gang)
            _, node = np.nonzero(entries >= 0)
            nodes.model.add_rows(node, entries[entries >= 0], 1, upper=left[gang])

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """The same for the greedy pipeline."""
        return Counted(idle_slots(problem, self.most))


class Counted(Greedy):
    """How many pods of each gang each node may still take."""

    def __init__(self, left: I64) -> None:
        self._left = left

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """(N,) nodes that one more task of a gang fits."""
        return np.asarray(self._left[gang] > 0) if gang >= 0 else None

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """Count tasks that have been placed."""
        self._left[gang, nodes] -= counts


def idle_slots(problem: Problem, most: int) -> I64:
    """(G, N) how many pods of each gang each node may still take."""
    left = np.full((problem.num_gangs, problem.num_nodes), most, np.int64)
    running = running_tasks(problem)
    np.subtract.at(left, (running.gang_of, running.node_of), 1)
    return np.maximum(left, 0)


def build(arguments: Mapping[str, Value]) -> Rule:
    """The rule for arguments that have been checked."""
    return PerNode(int(arguments["most"]))


PLUGIN = Plugin(
    name="per-node",
    meaning="at most so many pods of a gang on a node",
    arguments=(Argument("most", Kind.WHOLE, 1, "pods of a gang on a node", least=1),),
    build=build,
)
