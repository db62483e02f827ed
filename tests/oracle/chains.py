"""Simulate a cluster over several sessions by applying plans to manifests."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Enqueue, Evict, Nominate
from optsched.cluster.reasons import ReasonCode
from optsched.session.lending import LENT
from optsched.session.session import judge_actions
from tests.oracle.checks import OPEN, Finding, refused
from tests.oracle.manifests import gang_of, key_of, timestamp
from tests.oracle.proofs import check_starvation
from tests.oracle.sessions import Decided, decide, described, snapshot_of, without_solver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Plan
    from tests.oracle.manifests import Cluster, Manifest

SESSIONS = 10
_BY_DESERVED = ("capacity-hierarchical", "crater")
"""The models in which a queue keeps capacity above `deserved` until another queue reclaims it."""
_PERIOD_S, _LONG_PERIOD_S = 1.0, 420.0
_RESERVING = re.compile(r"the start of ([^ ,]+), expected")


def carry_out(cluster: Cluster, plan: Plan, period_s: float = _PERIOD_S) -> Cluster:
    """Return the cluster some seconds after a plan.

    Victims and terminating pods wait again, and bound pods run. The nominations are those of the
    plan.
    """
    after = cluster.copy()
    after.now_s += period_s
    pods = {key_of(p): p for p in after.of_kind("Pod")}
    gangs = {key_of(g): g for g in after.of_kind("PodGroup")}
    for pod in pods.values():
        if pod["metadata"].pop("deletionTimestamp", None):
            _restart(pod, after.now_s)
        pod["status"].pop("nominatedNodeName", None)
    for action in plan.actions:
        if isinstance(action, Enqueue):
            gangs[action.gang]["status"]["phase"] = "Inqueue"
        elif isinstance(action, Evict):
            _restart(pods[action.task], after.now_s)
        elif isinstance(action, Allocate):
            _bind(pods[action.task], action.node, after.now_s)
        elif isinstance(action, Nominate):
            pods[action.task]["status"]["nominatedNodeName"] = action.node
    _settle(after)
    return after


def _restart(pod: Manifest, now_s: float) -> None:
    pod["spec"].pop("nodeName", None)
    pod["status"] = {"phase": "Pending"}
    pod["metadata"]["creationTimestamp"] = timestamp(now_s)


def _bind(pod: Manifest, node: str, now_s: float) -> None:
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": timestamp(now_s)}


def _settle(cluster: Cluster) -> None:
    """Update the phases of the PodGroups."""
    running = Counter(gang_of(p) for p in cluster.of_kind("Pod") if "nodeName" in p["spec"])
    for gang in cluster.of_kind("PodGroup"):
        if running[gang["metadata"]["name"]] >= gang["spec"]["minMember"]:
            gang["status"]["phase"] = "Running"
        elif gang["status"]["phase"] == "Running" and not running[gang["metadata"]["name"]]:
            gang["status"]["phase"] = "Inqueue"


def finish(cluster: Cluster, rng: Random) -> Cluster:
    """Return the cluster after some fully running gangs have completed."""
    names = Counter(gang_of(p) for p in cluster.of_kind("Pod") if "nodeName" in p["spec"])
    waiting = {gang_of(p) for p in cluster.of_kind("Pod") if "nodeName" not in p["spec"]}
    ended = {n for n in sorted(names) if n and n not in waiting and rng.random() < 0.25}
    after = cluster.copy()
    after.objects = [
        o
        for o in after.objects
        if not (o["kind"] == "Pod" and gang_of(o) in ended)
        and not (o["kind"] == "PodGroup" and o["metadata"]["name"] in ended)
    ]
    return after


def check_calm(decided: Decided) -> Iterator[Finding]:
    """Ten sessions without other changes come to rest.

    No pod is evicted twice, each nominated pod is bound, and the last sessions have no actions. At
    the end, no waiting gang could start. A pod that started while its queue borrowed may be
    preempted in that queue. A pod that started above its queue's `deserved` may be reclaimed again.
    Both cases are counted as open.
    """
    model = decided.model
    evicted: Counter[str] = Counter()
    borrowed: dict[str, set[str]] = {"preempt": set(), "reclaim": set()}
    story: list[str] = []
    for turn in range(SESSIONS):
        plan = decided.plan
        story.append(f"session {turn}\n{described(plan)}")
        for finding in refused(decided.report, model):
            text = "\n".join([finding.text, *story])
            yield Finding(f"chain {finding.kind}", model, text)
            return
        if not plan.actions:
            yield from check_starvation(decided)
            return
        victims = [action for action in plan.actions if isinstance(action, Evict)]
        evicted.update(victim.task for victim in victims)
        again = [victim for victim in victims if evicted[victim.task] > 1]
        if again:
            is_open = all(v.task in borrowed.get(v.action, ()) for v in again)
            kind = f"{OPEN}, chain evicts borrowers" if is_open else "chain evicts again"
            told = f"evicted, started and evicted again: {', '.join(v.task for v in again)}\n"
            yield Finding(kind, model, told + "\n".join(story))
            return
        if any(r.name.startswith(LENT) and r.value for r in plan.certificate.levels):
            borrowed["preempt"].update(plan.binds)
        after = carry_out(decided.cluster, plan)
        if model in _BY_DESERVED:
            borrowed["reclaim"].update(_find_borrowers(after) & plan.binds.keys())
        decided = Decided(after, model)
    told = f"session {SESSIONS} with nothing new still acts\n"
    yield Finding("chain without end", model, told + "\n".join(story))


def check_rest(decided: Decided) -> Iterator[Finding]:
    """Sessions of the greedy pipeline alone come to rest too, after twenty sessions at most.

    As in Volcano, a queue that has lost a large pod may reclaim smaller ones. So pods may be
    evicted more than once.
    """
    cluster, policy = decided.cluster, without_solver(decided.policy)
    story: list[str] = []
    for turn in range(2 * SESSIONS):
        plan = decide(snapshot_of(cluster), policy).plan
        if not plan.actions:
            return
        story.append(f"session {turn}\n{described(plan)}")
        cluster = carry_out(cluster, plan)
    yield Finding("chain of the pipeline without end", decided.model, "\n".join(story))


def _find_borrowers(cluster: Cluster) -> set[str]:
    """Return the running pods of queues above their `deserved` in a resource that the pod uses.

    A queue without `deserved` deserves nothing.
    """
    specs = {q["metadata"]["name"]: q["spec"] for q in cluster.of_kind("Queue")}
    queue_of = {g["metadata"]["name"]: g["spec"]["queue"] for g in cluster.of_kind("PodGroup")}
    pods = [p for p in cluster.of_kind("Pod") if "nodeName" in p["spec"] and gang_of(p) in queue_of]
    held: dict[str, Counter[str]] = {name: Counter() for name in specs}
    lines: dict[str, list[str]] = {}
    for pod in pods:
        name: str | None = queue_of[gang_of(pod)]
        line = lines[key_of(pod)] = []
        while name in specs:
            line.append(name)
            held[name].update(_requests(pod))
            name = specs[name].get("parent")
    return {
        key_of(pod)
        for pod in pods
        for name in lines[key_of(pod)]
        if _exceeds(held[name], specs[name].get("deserved", {}), _requests(pod))
    }


def _requests(pod: Manifest) -> dict[str, int]:
    """Return the CPUs and devices that a pod requests.

    Memory is omitted, because no drawn queue has a share of memory.
    """
    requested = pod["spec"]["containers"][0]["resources"]["requests"]
    return {r: int(amount) for r, amount in requested.items() if r != "memory"}


def _exceeds(held: Counter[str], deserved: Manifest, used: dict[str, int]) -> bool:
    if not deserved:
        return True
    return any(held[r] > int(deserved[r]) for r, n in used.items() if n and r in deserved)


def check_history(
    decided: Decided, seed: str = "0", period_s: float = _PERIOD_S
) -> Iterator[Finding]:
    """Sessions keep every rule while gangs complete in between, and no gang that fits keeps
    waiting. No gang within the entitlement of its queue waits for a borrower's reservation.
    """
    model, rng = decided.model, Random(seed)
    for turn in range(SESSIONS):
        for finding in refused(decided.report, model):
            yield Finding(f"chain {finding.kind}", model, f"session {turn}: {finding.text}")
            return
        plan = decided.plan
        judged = judge_actions(decided.snapshot, decided.policy, plan.actions)
        if judged.violations:
            broken = str(judged.violations[0])
            yield Finding("chain accepted plan breaks a rule", model, broken)
            return
        for text in _find_bypassed(decided):
            yield Finding("chain reserves against an entitled gang", model, f"{turn}: {text}")
            return
        decided = Decided(finish(carry_out(decided.cluster, plan, period_s), rng), model)


def draw_period(seed: str) -> float:
    """Return the seconds between two sessions of a history; half of them see reservations."""
    return Random(f"period {seed}").choice((_PERIOD_S, _LONG_PERIOD_S))


def _find_bypassed(decided: Decided) -> Iterator[str]:
    """Yield gangs within `deserved` that wait for a reservation of another queue beyond `deserved`.

    Only models count in which `deserved` entitles a queue, and only clusters without parent queues.
    """
    cluster, plan = decided.cluster, decided.plan
    if decided.model not in _BY_DESERVED or any("parent" in q["spec"] for q in _queues(cluster)):
        return
    for key, reason in plan.pending.items():
        first = _RESERVING.search(reason.message)
        if reason.code is not ReasonCode.RESERVED or first is None:
            continue
        keeps, borrows = _keeps_deserved(cluster, key), not _keeps_deserved(cluster, first[1])
        is_apart = _queue_of(cluster, key) != _queue_of(cluster, first[1])
        if is_apart and keeps and borrows and "entitled" not in reason.message:
            yield f"{key}: {reason}"


def _queue_of(cluster: Cluster, key: str) -> str:
    return next(g["spec"]["queue"] for g in cluster.of_kind("PodGroup") if key_of(g) == key)


def _queues(cluster: Cluster) -> list[Manifest]:
    return cluster.of_kind("Queue")


def _keeps_deserved(cluster: Cluster, key: str) -> bool:
    """Return whether the minimum of a gang keeps its queue within what it deserves.

    The result is False if the queue deserves nothing that the gang requests.
    """
    queue_of = {key_of(g): g["spec"]["queue"] for g in cluster.of_kind("PodGroup")}
    least = {key_of(g): g["spec"]["minMember"] for g in cluster.of_kind("PodGroup")}
    spec = next(q["spec"] for q in _queues(cluster) if q["metadata"]["name"] == queue_of[key])
    floor, most = spec.get("guarantee", {}).get("resource", {}), spec.get("capability", {})
    due = {r: min(int(n), int(most.get(r, n))) for r, n in spec.get("deserved", {}).items()}
    due = {r: max(due.get(r, 0), int(floor.get(r, 0))) for r in {*due, *floor}}
    held: Counter[str] = Counter()
    requests: list[dict[str, int]] = []
    number = least[key]
    for pod in cluster.of_kind("Pod"):
        owner = f"{pod['metadata']['namespace']}/{gang_of(pod)}"
        holds = "nodeName" in pod["spec"] or "nominatedNodeName" in pod["status"]
        if holds and queue_of.get(owner) == queue_of[key]:
            held.update(_requests(pod))
        if owner == key and holds:
            number -= 1
        elif owner == key:
            requests.append(_requests(pod))
    largest = {r: max(each.get(r, 0) for each in requests) for each in requests for r in each}
    more = {r: n * max(number, 1) for r, n in largest.items() if n and due.get(r, 0)}
    return bool(more) and all(held[r] + n <= due[r] for r, n in more.items())
