"""Find contradictions between cluster objects; each is reported as a `Flaw` of one object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.api import kinds
from optsched.cluster.amounts import total
from optsched.cluster.reasons import Flaw, FlawCode
from optsched.cluster.snapshot import ROOT_QUEUE
from optsched.problem.queues import queue_faults
from optsched.units import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.cluster.snapshot import Budget, Gang, Queue, Snapshot
    from optsched.session.guarantees import Unheld


def find_flaws(
    snapshot: Snapshot, unheld: Iterable[Unheld], *, reads_topology: bool
) -> tuple[Flaw, ...]:
    """Return the validation errors of queues, GPU and NPU nodes, HyperNodes and PodGroups.

    Parameters
    ----------
    snapshot
        The snapshot before normalisation, with all queue guarantees.
    unheld
        The guarantees that were dropped because they exceed cluster capacity.
    reads_topology
        Whether the policy has a rule that reads the gangs' network topology.

    """
    found = [
        _queue_flaw(name, FlawCode.QUEUE, f"{reason.message}; it takes no new work")
        for name, reason in queue_faults(snapshot.queues).items()
    ]
    for each in unheld:
        amounts = (each.amount, each.capacity, each.older)
        amount, capacity, older = (amount_text(each.resource, a) for a in amounts)
        taken = f", of which older queues are guaranteed {older}" if each.older else ""
        have = f"its ancestor {each.holder} may" if each.holder else "all nodes together"
        message = f"{amount} are guaranteed, but {have} have {capacity}{taken}"
        text = f"{message}; none of it is reserved"
        found.append(_queue_flaw(each.queue, FlawCode.GUARANTEE, text))
    found += _tree_flaws(snapshot)
    for name, problems in sorted(snapshot.topology.problems.items()):
        message = f"{'; '.join(problems)}: these entries are ignored"
        found.append(Flaw(kinds.HYPER_NODE, name, FlawCode.HYPERNODE, message))
    found += _card_flaws(snapshot)
    if reads_topology:
        found += _tier_flaws(snapshot)
        return tuple(found)
    # Only one error is reported, because its remedy applies to all gangs with a hard topology.
    unread = (gang for gang in snapshot.gangs if gang.uid and gang.derived(_stays_together))
    if (gang := next(unread, None)) is not None:
        message = (
            "it has a hard network topology, but the policy lacks the plugin "
            "network-topology-aware: this gang and all others with one may be placed anywhere"
        )
        found.append(Flaw(kinds.POD_GROUP, gang.key, FlawCode.UNREAD, message))
    return tuple(found)


# --- queues --------------------------------------------------------------------------------------


def _queue_flaw(queue: str, code: FlawCode, message: str) -> Flaw:
    return Flaw(kinds.QUEUE, queue, code, message)


def _tree_flaws(snapshot: Snapshot) -> Iterator[Flaw]:
    below: dict[str, list[Queue]] = {}
    for queue in snapshot.queues:
        if queue.name != ROOT_QUEUE:
            below.setdefault(queue.parent, []).append(queue)
    for parent in snapshot.queues:
        children = below.get(parent.name, ())
        guaranteed = total(child.guarantee for child in children)
        deserved = total(child.deserved for child in children)
        checks = (
            (FlawCode.FLOORS, guaranteed, parent.guarantee, "are guaranteed", "it is guaranteed"),
            (FlawCode.FLOORS, guaranteed, parent.capability or (), "are guaranteed", "it may have"),
            (FlawCode.DESERVED, deserved, parent.deserved, "deserve", "it deserves"),
        )
        for code, together, own, verb, its in checks:
            for resource, most in own:
                if together.get(resource, 0) > most:
                    yield _queue_flaw(
                        parent.name,
                        code,
                        f"its child queues {verb} {amount_text(resource, together[resource])} "
                        f"together, more than the {amount_text(resource, most)} that {its}",
                    )
    for queue in snapshot.queues:
        for resource, limit in queue.capability or ():
            above = _ceiling_above(queue, resource, snapshot.queue_by_name)
            if above is not None and above[1] < limit:
                yield _queue_flaw(
                    queue.name,
                    FlawCode.CEILING,
                    f"its capability of {amount_text(resource, limit)} exceeds the "
                    f"{amount_text(resource, above[1])} of its ancestor {above[0]}; "
                    "the smaller applies",
                )


def _ceiling_above(
    queue: Queue, resource: str, by_name: Mapping[str, Queue]
) -> tuple[str, int] | None:
    """Return the nearest ancestor that limits a resource, with its limit, or None."""
    seen = {queue.name}
    while queue.name != ROOT_QUEUE and queue.parent in by_name and queue.parent not in seen:
        queue = by_name[queue.parent]
        seen.add(queue.name)
        limits = dict(queue.capability or ())
        if resource in limits:
            return queue.name, limits[resource]
    return None


# --- shared devices ------------------------------------------------------------------------------


def _card_flaws(snapshot: Snapshot) -> Iterator[Flaw]:
    """Yield errors for nodes whose device plugins report unreadable values or unknown NPUs."""
    for node in (n for n in snapshot.nodes if n.shared_gpus or n.card_problem):
        if node.card_problem:
            yield Flaw(kinds.NODE, node.name, FlawCode.CARDS, node.card_problem)
        unknown = {card.npu for card in node.shared_gpus if card.npu and card.chip is None}
        for npu in sorted(unknown) if unknown else ():
            message = f"no ConfigMap defines partitions for NPUs of the chip {npu}: no pod gets one"
            yield Flaw(kinds.NODE, node.name, FlawCode.CARDS, message)


# --- the network ---------------------------------------------------------------------------------


def _tier_flaws(snapshot: Snapshot) -> Iterator[Flaw]:
    """Yield an error for each gang that requests a tier without HyperNodes and is placed anyway."""
    tiers = sorted({h.tier for h in snapshot.topology.hypernodes})
    if not tiers:
        return
    for gang in snapshot.gangs:
        if gang.is_implicit or not gang.uid:
            continue
        requests = (gang.topology, *(rule.topology for rule in gang.sub_groups))
        hard = (r.highest_tier for r in requests if r is not None and r.is_hard)
        for tier in sorted({tier for tier in hard if tier is not None}):
            lower = [t for t in tiers if t < tier]
            if tier in tiers or not lower:
                continue
            meant = (
                f"it counts as tier {lower[-1]}" if tier < tiers[-1] else "every node is allowed"
            )
            message = (
                f"highestTierAllowed is {tier}, but no HyperNode has that tier: "
                f"known tiers are {', '.join(map(str, tiers))}; {meant}"
            )
            yield Flaw(kinds.POD_GROUP, gang.key, FlawCode.TIER, message)


def _stays_together(gang: Gang) -> bool:
    """Return whether a gang or one of its subgroups has a hard network topology."""
    requests = (gang.topology, *(rule.topology for rule in gang.sub_groups))
    return any(request is not None and request.is_hard for request in requests)


# --- budgets -------------------------------------------------------------------------------------


def budget_flaws(budgets: Iterable[Budget]) -> Iterator[Flaw]:
    """Yield errors for disruption budgets that protect pods while gangs wait for resources."""
    for budget in budgets:
        message = "it allows no disruption now, and gangs wait for resources of pods it protects"
        if budget.allowed > 0:
            message = (
                "another budget selects the same pods, so the API server refuses to evict them, "
                "and gangs wait for their resources"
            )
        yield Flaw(kinds.POD_DISRUPTION_BUDGET, budget.key, FlawCode.BUDGET, message)
