"""Pods for a demonstration go on stage: to the nodes that are kept for it, before all others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from optsched.plugin import Action, Argument, Kind, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.plugin import Task, Value, View

DEMO = "lab.example/demo"


def to_stage(view: View, label: str) -> Iterator[Place]:
    """Proposes a node with the label for every pod of a demonstration, as far as they go."""
    stage = [n.name for n in view.snapshot.nodes if label in n.labels and n.name in view.free]
    free = {name: dict(view.free[name]) for name in stage}
    for gang in view.gangs:
        for task in view.waiting[gang.key]:
            node = next((n for n in stage if DEMO in task.labels and fits(task, free[n])), None)
            if node is not None:
                for resource, amount in task.shape.request:
                    free[node][resource] -= amount
                yield Place(task.key, node)


def fits(task: Task, free: Mapping[str, int]) -> bool:
    """Whether a node has room for a pod."""
    return all(free.get(resource, 0) >= amount for resource, amount in task.shape.request)


def build(arguments: Mapping[str, Value]) -> partial[Iterator[Place]]:
    """The action for arguments that have been checked."""
    return partial(to_stage, label=str(arguments["label"]))


ACTION = Action(
    name="stage",
    meaning="puts pods for demonstrations on the nodes that are kept for them",
    arguments=(Argument("label", Kind.TEXT, "lab.example/stage", "of nodes that are kept"),),
    build=build,
)
