"""GPUs under repair take no tasks, and nodes with cheap power come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.plugin import Argument, Kind, Plugin, Rule, Switch, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.plugin import F64, Bool, Node, Problem, TaskShape, Value, World

REPAIR, POWER = "lab.example/repair", "lab.example/power"
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Maintenance(Rule):
    """Nodes whose GPUs are being repaired take no task that asks for GPUs."""

    name = "maintenance"
    hard_switch = Switch.PREDICATE

    cheap: str = "green"
    weight: int = 10

    def verify(self, world: World) -> Iterator[Violation]:
        """Judge a finished plan, from the domain objects alone."""
        for task, _, node in world.placements:
            if is_shut(node, task.shape):
                yield Violation(self.name, f"task {task.key}", f"GPUs of {node.name} are in repair")

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """(N,) nodes that tasks of a class may use."""
        shape = problem.classes.shapes[task_class]
        return np.array([not is_shut(n, shape) for n in problem.snapshot.nodes], np.bool_)

    def refusal(self, problem: Problem, task_class: int) -> str:
        """Return the text after the number of nodes that the mask excludes."""
        return "had GPUs in repair"

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """(N,) points of nodes, more is better."""
        cheap = [n.labels.get(POWER) == self.cheap for n in problem.snapshot.nodes]
        return np.array(cheap, np.float64) * self.weight


def is_shut(node: Node, shape: TaskShape) -> bool:
    """Whether a node takes no task of a shape."""
    return REPAIR in node.labels and dict(shape.request).get(GPU, 0) > 0


def build(arguments: Mapping[str, Value]) -> Rule:
    """The rule for checked arguments; missing arguments have their defaults."""
    return Maintenance(str(arguments["power"]), int(arguments["weight"]))


PLUGIN = Plugin(
    name="maintenance",
    meaning="GPUs in repair take no tasks, cheap power comes first",
    arguments=(
        Argument("power", Kind.TEXT, "green", "the power that is preferred"),
        Argument("weight", Kind.WHOLE, 10, "points for it"),
    ),
    build=build,
)
