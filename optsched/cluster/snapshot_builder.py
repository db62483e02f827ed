"""An incremental snapshot builder that reuses unchanged objects.

The live cache, the manifest reader and the simulator use this builder.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import Task

V = TypeVar("V")

_NO_TASKS: Final[Mapping[str, Task]] = {}


class SortedMap(Generic[V]):
    """A map sorted by name; if an equal value is stored again, the map keeps the first object."""

    def __init__(self) -> None:
        self._by_name: dict[str, V] = {}
        self._names: list[str] = []
        self._listed: list[V] = []  # the values in the order of `_names`
        self._values: tuple[V, ...] | None = ()

    def lookup(self, name: str) -> V | None:
        """Return the value that is stored under a name, or None if the name is not stored."""
        return self._by_name.get(name)

    def store(self, name: str, value: V) -> None:
        """Store a value under a name."""
        known = self._by_name.get(name)
        if known is not None and known == value:
            return
        at = bisect_left(self._names, name)
        if known is None:
            self._names.insert(at, name)
            self._listed.insert(at, value)
        else:
            self._listed[at] = value
        self._by_name[name] = value
        self._values = None

    def remove(self, name: str) -> None:
        """Remove the value stored under a name, if any."""
        if self._by_name.pop(name, None) is None:
            return
        at = bisect_left(self._names, name)
        del self._names[at], self._listed[at]
        self._values = None

    @property
    def values(self) -> tuple[V, ...]:
        """All values, sorted by name; the same tuple object as long as no value changes."""
        if self._values is None:
            self._values = tuple(self._listed)
        return self._values


class SnapshotBuilder:
    """Stores nodes, the tasks on nodes, and gangs, from which `build` makes a snapshot.

    A task may be added before its node.

    Attributes
    ----------
    gangs
        Gangs by key.
    """

    def __init__(self) -> None:
        self.gangs: SortedMap[Gang] = SortedMap()
        self._bare_nodes: dict[str, Node] = {}
        self._residents: dict[str, dict[str, Task]] = {}
        self._changed_nodes: set[str] = set()
        self._nodes: SortedMap[Node] = SortedMap()

    def find_node(self, name: str) -> Node | None:
        """Return a stored node without its residents, or None if the node is not stored."""
        return self._bare_nodes.get(name)

    def store_node(self, node: Node) -> None:
        """Store a node without its tasks; `add_resident` adds the tasks."""
        self._bare_nodes[node.name] = node
        self._changed_nodes.add(node.name)

    def remove_node(self, name: str) -> None:
        """Remove a node, if it exists; its tasks stay stored, in case the node is stored again."""
        self._bare_nodes.pop(name, None)
        self._changed_nodes.add(name)

    def add_resident(self, task: Task, node: str) -> None:
        """Add a task to a node, in place of a stored task with the same key."""
        residents = self._residents.get(node)
        if residents is None:
            residents = self._residents[node] = {}
        residents[task.key] = task
        self._changed_nodes.add(node)

    def remove_resident(self, key: str, node: str) -> Task:
        """Remove a task from a node and return the task."""
        residents = self._residents[node]
        task = residents.pop(key)
        if not residents:
            del self._residents[node]
        self._changed_nodes.add(node)
        return task

    def residents(self, node: str) -> Mapping[str, Task]:
        """Return the tasks on a node, keyed by task key."""
        return self._residents.get(node, _NO_TASKS)

    def tasks_without_node(self) -> list[Task]:
        """Return the tasks whose node is not stored, sorted by task key."""
        unknown = sorted(self._residents.keys() - self._bare_nodes.keys())
        tasks = (task for name in unknown for task in self._residents[name].values())
        return sorted(tasks, key=lambda task: task.key)

    def build(self, taken_ms: int, others: Snapshot) -> Snapshot:
        """Return the snapshot at `taken_ms`, with the nodes and gangs of this builder.

        All other objects come from `others`.
        """
        for name in self._changed_nodes:
            node = self._bare_nodes.get(name)
            if node is None:
                self._nodes.remove(name)
                continue
            held = self.residents(name)
            residents = tuple(map(held.__getitem__, sorted(held)))
            self._nodes.store(name, replace(node, residents=residents))
        self._changed_nodes.clear()
        return replace(others, taken_ms=taken_ms, nodes=self._nodes.values, gangs=self.gangs.values)
