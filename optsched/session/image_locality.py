"""Which images and data sets tell nodes apart, so that tasks which need them are classes apart.

Only an image that some ready nodes have and others lack makes a difference: all others are left
out, so that pods of many images stay in one task class where that does not matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from optsched.api.wellknown import DATASETS
from optsched.cluster.node_parts import NO_REQUIRED_DATA, RequiredData
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.nodes import datasets_in
from optsched.plugins.scores.nodeorder import DataLocality, NodeOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import Rule


def with_required_data(snapshot: Snapshot, scoring: Iterable[Rule]) -> Snapshot:
    """The snapshot in which shapes of pending tasks name the data that rules score.

    The very same snapshot where no task needs data, or where all nodes are equal.
    """
    rules = list(scoring)
    images = any(isinstance(r, NodeOrder) and r.image_locality for r in rules)
    datasets = any(isinstance(r, DataLocality) and r.weight for r in rules)
    stores = [n.store for n in snapshot.nodes if n.ready]
    images &= any(store.images for store in stores)
    datasets &= any(store.datasets for store in stores)
    if not images and not datasets:
        return snapshot
    pending = [(g, t) for g in snapshot.gangs for t in g.tasks if t.status is TaskStatus.PENDING]
    named = {n for _, t in pending for n in t.wants.images if n} if images else set[str]()
    counts = Counter(n for store in stores for n in store.size_of.keys() & named)
    counted = Counter(n for store in stores for n in store.datasets) if datasets else Counter()
    known = (_Known.of(counts, len(stores)), _Known.of(counted, len(stores)))
    changed: dict[str, dict[str, Task]] = {}
    for gang, task in pending:
        wants = _stored_data(task, gang.annotations, known)
        if wants != NO_REQUIRED_DATA:
            fresh = replace(task, shape=replace(task.shape, wants=wants))
            changed.setdefault(gang.key, {})[task.key] = fresh
    if not changed:
        return snapshot
    gangs = tuple(_changed(g, changed[g.key]) if g.key in changed else g for g in snapshot.gangs)
    return replace(snapshot, gangs=gangs)


class _Known(NamedTuple):
    """Names that some nodes hold, and those of them that not all do."""

    held: frozenset[str]
    telling: frozenset[str]

    @classmethod
    def of(cls, counts: Mapping[str, int], num_nodes: int) -> _Known:
        """From the numbers of nodes that hold each."""
        telling = frozenset(name for name, number in counts.items() if number < num_nodes)
        return cls(frozenset(counts), telling)


def _stored_data(
    task: Task, of_gang: Mapping[str, str], known: tuple[_Known, _Known]
) -> RequiredData:
    images = tuple(name if name in known[0].held else "" for name in task.wants.images)
    datasets = task.wants.datasets or datasets_in(of_gang.get(DATASETS, ""))
    return RequiredData(
        images if known[0].telling.intersection(images) else (),
        datasets if known[1].telling.intersection(datasets) else (),
    )


def _changed(gang: Gang, tasks: Mapping[str, Task]) -> Gang:
    return replace(gang, tasks=tuple(tasks.get(t.key, t) for t in gang.tasks))
