"""Change a cluster in ways that keep its best plan the same, or make it no worse."""

from __future__ import annotations

import re
from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, Any

from tests.oracle.checks import OPEN, Finding
from tests.oracle.manifests import gang_of
from tests.oracle.proofs import false_claim
from tests.oracle.sessions import (
    Worth,
    decide,
    described,
    first_loss,
    forgoes_admission,
    snapshot_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Plan
    from tests.oracle.manifests import Cluster
    from tests.oracle.sessions import Decided

_HALF = "other-half"
_OVER_NODES = ("node score", "fragmentation", "network topology", "victims")
"""Levels that additional capacity may worsen, because more tasks start on other nodes."""


def permuted(cluster: Cluster, seed: str) -> Cluster:
    """Return the same objects in another order."""
    after = cluster.copy()
    Random(seed).shuffle(after.objects)
    return after


def doubled(cluster: Cluster) -> Cluster:
    """Return the cluster with twice the CPU and memory amounts."""
    after = cluster.copy()
    for made in after.objects:
        _double(made)
    return after


def _double(value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _double(each)
    if not isinstance(value, dict):
        return
    for key, each in value.items():
        if key in ("cpu", "memory") and isinstance(each, str):
            found = re.fullmatch(r"(\d+)(\D*)", each)
            assert found is not None
            value[key] = f"{2 * int(found[1])}{found[2]}"
        else:
            _double(each)


def renamed(cluster: Cluster) -> Cluster:
    """Return the cluster with a prefix on every PodGroup and pod name, in the same order."""
    after = cluster.copy()
    for made in after.objects:
        if made["kind"] in ("PodGroup", "Pod"):
            made["metadata"]["name"] = f"x{made['metadata']['name']}"
        notes = made["metadata"].get("annotations", {})
        group = "scheduling.k8s.io/group-name"
        if group in notes:
            notes[group] = f"x{notes[group]}"
    return after


def roomier(cluster: Cluster) -> Cluster:
    """Return the cluster with a copy of the node with the most CPUs."""
    after = cluster.copy()
    model = max(
        after.of_kind("Node"), key=lambda n: int(n["status"]["allocatable"].get("cpu", "0"))
    )
    offer = {r: a for r, a in model["status"]["allocatable"].items() if r != "pods"}
    after.node("zz-new", offer, {"zone": "z0"})
    return after


def split(cluster: Cluster, rng: Random) -> Cluster | None:
    """Split an open leaf queue into two equal queues with half of its amounts.

    Weights of all other queues are doubled. Every second waiting gang of the queue moves to the new
    queue. Return None without an open leaf queue.
    """
    after = cluster.copy()
    specs = {q["metadata"]["name"]: q["spec"] for q in after.of_kind("Queue")}
    closed = {q["metadata"]["name"] for q in after.of_kind("Queue") if "status" in q}
    parents = {spec.get("parent") for spec in specs.values()}
    leaves = [
        name
        for name, spec in specs.items()
        if name not in parents | closed | {"default"} and "dequeueStrategy" not in spec
    ]
    if not leaves:
        return None
    chosen = rng.choice(leaves)
    for name, spec in specs.items():
        if name != chosen:
            spec["weight"] = 2 * spec.get("weight", 1)
    own = specs[chosen]
    for amounts in (
        own.get("deserved", {}),
        own.get("capability", {}),
        own.get("guarantee", {}).get("resource", {}),
    ):
        amounts.update({r: str(int(a) // 2) for r, a in amounts.items()})
    after.queue(_HALF, **deepcopy(own))
    running = {gang_of(p) for p in after.of_kind("Pod") if "nodeName" in p["spec"]}
    waiting = [
        g
        for g in after.of_kind("PodGroup")
        if g["spec"]["queue"] == chosen and g["metadata"]["name"] not in running
    ]
    for gang in waiting[::2]:
        gang["spec"]["queue"] = _HALF
    return after


def check_split(decided: Decided, seed: str = "0") -> Iterator[Finding]:
    """No bound of a queue excludes a plan that the two halves of the queue reach together."""
    halves = split(decided.cluster, Random(seed))
    if halves is None:
        return
    policy, plan, model = decided.policy, decided.plan, decided.model
    parted = decide(snapshot_of(halves), policy).plan
    theirs = Worth.of(decided.snapshot, policy, parted.actions)
    loss = None if theirs.violations else first_loss(decided.worth, theirs)
    if loss is not None:
        kind = false_claim(plan.certificate, loss) or OPEN
        level = loss.level.partition(",")[0]
        text = f"worse than in two halves: {loss}\n{described(plan)}\nhalves\n{described(parted)}"
        yield Finding(f"{kind}, queue in halves {level}", model, text)


def check_metamorphic(decided: Decided, seed: str = "0") -> Iterator[Finding]:
    """Changes of order, names and units keep the values of proved levels."""
    policy, plan, cluster = decided.policy, decided.plan, decided.cluster
    weights = _weights(cluster)
    for name, change in {
        "order": lambda c: permuted(c, seed),
        "names": renamed,
        "units": doubled,
    }.items():
        other = decide(snapshot_of(change(cluster)), policy).plan
        yield from _same(name, decided.model, plan, other, weights, len(decided.snapshot.queues))


def _weights(cluster: Cluster) -> list[int]:
    """Return the weight of each gang on a level that is weighted by priority."""
    values = {each["metadata"]["name"]: each["value"] for each in cluster.of_kind("PriorityClass")}
    gangs = cluster.of_kind("PodGroup")
    return [max(values.get(g["spec"].get("priorityClassName", ""), 1), 1) for g in gangs]


def _same(
    name: str, model: str, plan: Plan, other: Plan, weights: list[int], num_queues: int
) -> Iterator[Finding]:
    """Two proved plans of equivalent problems have equal values."""
    theirs = {r.name: r for r in other.certificate.levels}
    for mine in plan.certificate.levels:
        found = theirs.get(mine.name)
        if found is None or not (mine.status == "OPTIMAL" == found.status):
            return
        # After doubling, the rounding of each counted gang may add one unit.
        slack = sum(weights) if "weighted" in mine.name else len(weights)
        is_double = name == "units" and 0 <= found.value - 2 * mine.value < slack
        # Shares are whole base units, and a share that exceeds a whole number of steps by one base
        # unit counts as one more step. Doubling may remove or add this base unit.
        is_share = name == "units" and mine.name.startswith("fair share")
        if is_share and 0 < abs(found.value - mine.value) <= num_queues:
            return
        if found.value != mine.value and not is_double:
            yield _changed(name, mine.name, model, plan, other)
            return


def _changed(name: str, level: str, model: str, plan: Plan, other: Plan) -> Finding:
    text = f"level {level} differs\n{described(plan)}\nwith other {name}\n{described(other)}"
    return Finding(f"other {name} {level.partition(',')[0]}", model, text)


def check_roomier(decided: Decided) -> Iterator[Finding]:
    """With one more node, no level over gangs is worse than with the earlier plan.

    A search that ends before a proof may find a worse value on a larger cluster. Therefore a worse
    plan is a finding only if the certificate excludes the better plan. Other cases are counted as
    open.
    """
    policy, before = decided.policy, decided.plan
    larger = snapshot_of(roomier(decided.cluster))
    after = decide(larger, policy).plan
    mine, theirs = (Worth.of(larger, policy, p.actions) for p in (after, before))
    if theirs.violations or forgoes_admission(after):
        # A gang that borrows the new node instead of evicting pods no longer counts as admitted.
        return
    loss = first_loss(mine, theirs)
    if loss is not None and loss.level not in _OVER_NODES:
        kind = false_claim(after.certificate, loss) or OPEN
        level = loss.level.partition(",")[0]
        text = f"worse with one more node: {loss}\n{described(after)}\nbefore\n{described(before)}"
        yield Finding(f"{kind}, one more node {level}", decided.model, text)


__all__ = [
    "check_metamorphic",
    "check_roomier",
    "check_split",
    "doubled",
    "permuted",
    "renamed",
    "split",
]
