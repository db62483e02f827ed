"""Find needless victims: evicted pods whose resources the preemptor does not use.

Mathematics: models/formulation/entitled.md, "use". Without the check for needless victims, a queue
could evict pods for a gang that starts on other nodes, and give the released capacity to other
gangs.
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
    from optsched.plugins.ruleset import RuleSet
    from optsched.plugins.verification.world import World

_FITS = "fits"


def find_needless(
    world: World, rules: RuleSet, by: Collection[str]
) -> Iterator[tuple[list[str], str]]:
    """Yield the keys of victims that a preemptor does not need, with the preemptor's key.

    A node belongs to a preemptor if the plan binds or nominates a task of the preemptor there.

    `_needs_victims` decides whether a preemptor needs all victims on one of its nodes. A victim on
    another node is needed if its gang also loses a task on a node of the preemptor, and if the gang
    would stay below a minimum even with this victim. A victim is also needed if, without its
    eviction, the preemptor would violate a rule other than `fits`.
    """
    coming: dict[str, dict[str, list[Task]]] = {}
    for placement in (*world.placements, *world.nominations):
        of_gang = coming.setdefault(placement.gang.key, {})
        of_gang.setdefault(placement.node.name, []).append(placement.task)
    victims_of: dict[str, list[Task]] = {}
    for eviction in world.evictions:
        task = world.task_by_key.get(eviction.task)
        if task is None or eviction.action not in by or task.gang == eviction.preemptor:
            continue
        if eviction.preemptor in world.snapshot.gang_by_key:
            victims_of.setdefault(eviction.preemptor, []).append(task)
    evicted = {eviction.task for eviction in world.evictions}
    away: dict[str, list[Task]] = {}  # victims on nodes that the preemptor does not use, by gang
    for preemptor, victims in victims_of.items():
        for task in victims:
            if task.node not in coming.get(preemptor, {}):
                away.setdefault(task.gang, []).append(task)
    spare: set[str] = set()  # Each gang would meet its minimums if it kept its victims in `spare`.
    for key, tasks in away.items():
        if _is_complete_with(world.snapshot.gang_by_key[key], evicted, tasks):
            spare |= {task.key for task in tasks}
    for preemptor, victims in sorted(victims_of.items()):
        gang = world.snapshot.gang_by_key[preemptor]
        placed_on = coming.get(preemptor, {})
        doubtful = _find_doubtful(world, placed_on, victims, spare)
        if doubtful and not _is_required_by_rule(world, rules, (gang, placed_on), doubtful):
            yield doubtful, preemptor


def _find_doubtful(
    world: World,
    coming: Mapping[str, Sequence[Task]],
    victims: Sequence[Task],
    elsewhere: Collection[str],
) -> list[str]:
    """Return the keys of the victims that may be needless for the preemptor.

    If a node of the preemptor has too many victims, only its largest victim is returned. The
    victims in `elsewhere` are on nodes without tasks of the preemptor; their gangs would meet all
    minimums if they kept these victims.
    """
    evicted = {eviction.task for eviction in world.evictions}
    spare: set[str] = set()  # A gang would meet its minimums if it kept any one victim in `spare`.
    for key in {task.gang for task in victims}:
        gang = world.snapshot.gang_by_key[key]
        mine = [task for task in victims if task.gang == key]
        candidates = mine if gang.role_minimums or gang.sub_groups else mine[:1]
        for task in candidates:
            if _is_complete_with(gang, evicted, [task]):
                spare |= {task.key} if candidates is mine else {t.key for t in mine}
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


def _is_complete_with(gang: Gang, evicted: Collection[str], kept: Sequence[Task]) -> bool:
    held = [t for t in gang.tasks if t.status.counts_as_ready]
    left = [t for t in held if t.key not in evicted]
    return next(find_losses(gang, held, [*left, *kept]), None) is None


def _needs_victims(node: Node, coming: Sequence[Task], leaving: Sequence[Task]) -> bool:
    """Return whether the tasks in `coming` need all victims in `leaving` on their common node.

    All victims are needed if, for at least one resource, they release less than a limit. The limit
    is the sum of three amounts: the total request of the tasks, the number of tasks times the
    largest usage of one victim, and the usage of the node above its capacity.
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
    """Return whether a gang would violate a rule, such as a quota, if `doubtful` were not evicted.

    `preemptor` contains the gang and the names of its nodes. Violations of other gangs, tasks,
    queues and nodes are ignored.
    """
    gang, nodes = preemptor
    stay = set(doubtful)
    actions = [a for a in world.actions if not (isinstance(a, Evict) and a.task in stay)]
    queue = world.snapshot.queue_by_name.get(gang.queue)
    names: dict[str, Collection[str]] = {
        "task": {task.key for task in gang.tasks},
        "gang": {gang.key},
        "queue": set() if queue is None else {above.name for above in world.ancestors(queue)},
        "node": nodes,
    }
    # Lending is disabled, because a preemptor must not depend on borrowed capacity.
    active = tuple(
        replace(a, rule=replace(a.rule, lends=False)) if isinstance(a.rule, Proportion) else a
        for a in rules.active
    )
    without_lending = replace(rules, active=active, guards=())
    for violation in verify_actions(world.snapshot, actions, without_lending):
        kind, _, name = violation.where.partition(" ")
        if violation.rule != _FITS and (kind not in names or name in names[kind]):
            return True
    return False
