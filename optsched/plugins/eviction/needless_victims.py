"""Victims whose resources the preemptor does not use.

Mathematics: models/formulation/entitled.md, "use". Without a check of needless victims, a queue
could evict pods for a gang that starts on other nodes. Other gangs could get the capacity that the
evicted pods release.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Evict
from optsched.plugins.eviction.moves import find_losses
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.verification.verify import verify_actions
from optsched.plugins.verification.world import summed, task_usage
from optsched.units import PODS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang, Node
    from optsched.cluster.task import Task
    from optsched.plugins.extension_points import Violation
    from optsched.plugins.ruleset import RuleSet
    from optsched.plugins.verification.world import World

_FITS = "fits"


def find_needless(
    world: World, rules: RuleSet, by: Collection[str]
) -> Iterator[tuple[list[str], str]]:
    """Yield (victims, preemptor) for victims that the preemptor does not need.

    A node of the preemptor is a node on which a task of the preemptor is placed or nominated.

    The victims on a node of the preemptor are needed if the victims release less than a limit of
    some resource. The limit is the request of the preemptor's tasks on the node, plus the largest
    victim's usage for each task of the preemptor. A victim on another node is needed under two
    conditions. First, the victim's gang would be incomplete if only that victim were kept. Second,
    the victim's gang also loses a task on a node of the preemptor. A victim is also needed if,
    without its eviction, the preemptor would break a rule other than `fits`.
    """
    coming = _placements_by_gang(world)
    victims_of = _find_victims(world, by)
    elsewhere = _find_spare_elsewhere(world, coming, victims_of)
    for preemptor, victims in sorted(victims_of.items()):
        gang = world.snapshot.gang_by_key[preemptor]
        here = coming.get(preemptor, {})
        doubtful = _find_doubtful(world, here, victims, elsewhere)
        if doubtful and not _is_required_by_rule(world, rules, (gang, here), doubtful):
            yield doubtful, preemptor


def _find_victims(world: World, by: Collection[str]) -> dict[str, list[Task]]:
    """Return the victims of each preemptor, except the preemptor's own tasks."""
    found: dict[str, list[Task]] = {}
    for eviction in world.evictions:
        task = world.task_by_key.get(eviction.task)
        is_known = task is not None and eviction.preemptor in world.snapshot.gang_by_key
        if not is_known or eviction.action not in by:
            continue
        if task is not None and task.gang != eviction.preemptor:
            found.setdefault(eviction.preemptor, []).append(task)
    return found


def _placements_by_gang(world: World) -> dict[str, dict[str, list[Task]]]:
    """Return the placed and nominated tasks by gang key and node name."""
    found: dict[str, dict[str, list[Task]]] = {}
    for placement in (*world.placements, *world.promises):
        of_gang = found.setdefault(placement.gang.key, {})
        of_gang.setdefault(placement.node.name, []).append(placement.task)
    return found


def _find_spare_elsewhere(
    world: World,
    coming: Mapping[str, Mapping[str, Sequence[Task]]],
    victims_of: Mapping[str, Sequence[Task]],
) -> set[str]:
    """Return keys of victims that gangs could keep, on nodes that the preemptor does not use.

    A gang must be able to keep all returned victims together.
    """
    evicted = {eviction.task for eviction in world.evictions}
    away: dict[str, list[Task]] = {}
    for preemptor, victims in victims_of.items():
        for task in victims:
            if task.node not in coming.get(preemptor, {}):
                away.setdefault(task.gang, []).append(task)
    found: set[str] = set()
    for key, tasks in away.items():
        if _is_complete_with(world.snapshot.gang_by_key[key], evicted, tasks):
            found |= {task.key for task in tasks}
    return found


def _find_doubtful(
    world: World,
    coming: Mapping[str, Sequence[Task]],
    victims: Sequence[Task],
    elsewhere: Collection[str],
) -> list[str]:
    """Return the keys of victims that the preemptor possibly does not need.

    For a node of the preemptor with too many victims, only the largest victim is returned.

    `elsewhere` contains the victims of `_find_spare_elsewhere`.
    """
    spare = _find_spare(world, victims)
    served = {task.gang for task in victims if task.node in coming}
    doubtful = [
        task.key
        for task in victims
        if task.node not in coming
        and (task.key in spare or task.key in elsewhere or task.gang not in served)
    ]
    by_node: dict[str, list[Task]] = {}
    for task in victims:
        if task.node in coming and task.key in spare:
            by_node.setdefault(task.node, []).append(task)
    for name, leaving in sorted(by_node.items()):
        node = world.snapshot.node_by_name[name]
        if not _needs_victims(node, coming[name], leaving):
            doubtful.append(
                max(leaving, key=lambda task: (sorted(task_usage(task).items()), task.key)).key
            )
    return sorted(doubtful)


def _find_spare(world: World, victims: Sequence[Task]) -> set[str]:
    """Return the keys of victims whose gang would be complete if only that victim were kept."""
    evicted = {eviction.task for eviction in world.evictions}
    found: set[str] = set()
    for key in {task.gang for task in victims}:
        gang = world.snapshot.gang_by_key[key]
        mine = [task for task in victims if task.gang == key]
        candidates = mine if gang.role_minimums or gang.sub_groups else mine[:1]
        for task in candidates:
            if _is_complete_with(gang, evicted, [task]):
                found |= {task.key} if candidates is mine else {t.key for t in mine}
    return found


def _is_complete_with(gang: Gang, evicted: Collection[str], kept: Sequence[Task]) -> bool:
    """Return whether a gang would meet all its minimums if the tasks `kept` were not evicted."""
    held = [t for t in gang.tasks if t.status.counts_as_ready]
    left = [t for t in held if t.key not in evicted]
    return next(find_losses(gang, held, [*left, *kept]), None) is None


def _needs_victims(node: Node, coming: Sequence[Task], leaving: Sequence[Task]) -> bool:
    """Return whether the tasks `coming` to a node need all victims of the node.

    The tasks need all victims if, for some resource, the victims release less than a limit. The
    limit is the total request of the tasks, plus the number of tasks times the usage of the largest
    victim. On an overcommitted node, the excess over the capacity of the node is added.
    """
    requested = summed(map(task_usage, coming))
    given = [task_usage(task) for task in leaving]
    held = summed(map(task_usage, node.residents))
    for resource, amount in requested.items():
        over = held.get(resource, 0) - node.offer(resource)
        if not amount or (resource == PODS and over + amount <= 0):
            continue
        most = amount + max(over, 0) + len(coming) * max(g.get(resource, 0) for g in given)
        if 0 < sum(g.get(resource, 0) for g in given) < most:
            return True
    return False


def _is_required_by_rule(
    world: World,
    rules: RuleSet,
    preemptor: tuple[Gang, Collection[str]],
    doubtful: Sequence[str],
) -> bool:
    """Return whether a gang would break a rule, such as a quota, without the given evictions."""
    stay = set(doubtful)
    actions = [a for a in world.actions if not (isinstance(a, Evict) and a.task in stay)]
    names = _find_names(world, *preemptor)
    return any(
        violation.rule != _FITS and _concerns(violation, names)
        for violation in verify_actions(world.snapshot, actions, _without_lending(rules))
    )


def _without_lending(rules: RuleSet) -> RuleSet:
    """Return the rules without lending; a preemptor must not depend on borrowed capacity."""
    active = (
        replace(a, rule=replace(a.rule, lends=False)) if isinstance(a.rule, Proportion) else a
        for a in rules.active
    )
    return replace(rules, active=tuple(active), guards=())


def _find_names(world: World, gang: Gang, nodes: Collection[str]) -> dict[str, set[str]]:
    """Return names by object kind: a gang, the gang's tasks, its queue and ancestors, and nodes."""
    queue = world.snapshot.queue_by_name.get(gang.queue)
    line = [] if queue is None else world.ancestors(queue)
    return {
        "task": {task.key for task in gang.tasks},
        "gang": {gang.key},
        "queue": {above.name for above in line},
        "node": set(nodes),
    }


def _concerns(violation: Violation, names: Mapping[str, set[str]]) -> bool:
    kind, _, name = violation.where.partition(" ")
    return kind not in names or name in names[kind]
