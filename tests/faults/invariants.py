"""Check invariants on recorded watch events, without I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from optsched.api.wellknown import SUBMITTER
from optsched.units.quantity import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tests.faults.schedule import Submission
    from tests.support.story import Moment

COMPLETE_S: Final = 60.0
"""The longest time from the first to the last bind of a gang, which several faults may delay."""

COLLECTED_S: Final = 40.0
"""The time in seconds after which Kubernetes deletes the pods of a deleted node."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})


def find_violations(moments: Sequence[Moment], cpus: Mapping[str, int]) -> list[str]:
    """Return sentences about violations, or an empty list if no invariant is violated."""
    return [
        *_bound_twice(moments),
        *_overfull(moments, cpus),
        *_evicted_after_end(moments),
    ]


def _bound_twice(moments: Sequence[Moment]) -> Iterator[str]:
    node_of: dict[str, str] = {}
    for moment in moments:
        before = node_of.setdefault(moment.uid, moment.node)
        if before not in ("", moment.node):
            yield f"{moment.name} was bound to {before} and then to {moment.node or 'no node'}"
        node_of[moment.uid] = moment.node


def _overfull(moments: Sequence[Moment], cpus: Mapping[str, int]) -> Iterator[str]:
    now: dict[str, Moment] = {}
    told: set[str] = set()
    for moment in moments:
        now[moment.name] = moment
        if not moment.node or moment.node in told:
            continue
        used = sum(p.cpus for p in now.values() if p.takes_room and p.node == moment.node)
        if used > cpus.get(moment.node, used):
            told.add(moment.node)
            yield f"{moment.node} held {used} CPUs of {cpus[moment.node]}"


def _evicted_after_end(moments: Sequence[Moment]) -> Iterator[str]:
    ended: set[str] = set()
    for moment in moments:
        if moment.is_evicted and moment.uid in ended:
            ended.discard(moment.uid)
            yield f"{moment.name} was evicted although it had ended"
        elif moment.phase in _ENDED and not moment.is_evicted:
            ended.add(moment.uid)


def find_losses(
    moments: Sequence[Moment], sizes: Mapping[str, int], lost: Collection[str] = ()
) -> list[str]:
    """Return sentences about gangs that are neither completed, nor evicted, nor lost with their
    node.

    `sizes` contains the number of pods by gang. `lost` contains the names of pods that were deleted
    with their node.
    """
    now = {moment.name: moment for moment in moments}
    taken = {moment.name for moment in moments if moment.is_evicted}.union(lost)
    gangs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, moment in now.items():
        state = "taken" if name in taken else moment.phase if moment.is_there else "gone"
        gangs[moment.gang][state] += 1
    found = []
    for gang, size in sizes.items():
        states = gangs[gang]
        is_over = states["Succeeded"] == size
        # The rest of a gang that lost pods waits for them, so none of its pods runs.
        is_torn = states["taken"] > 0 and states["Running"] == 0 and states["gone"] == 0
        if not (is_over or is_torn):
            waits = [
                f"{pod.name} is {pod.phase} on {pod.node or 'no node'}"
                for pod in now.values()
                if pod.gang == gang and pod.is_there and pod.phase not in _ENDED
            ]
            counts = str(dict(states)) if states else "nothing was seen of it"
            found.append(f"gang {gang} of {size}: {', '.join([counts, *waits])}")
    return found


def find_halves(
    moments: Sequence[Moment], sizes: Mapping[str, int], lost: Collection[str] = ()
) -> list[str]:
    """Return sentences about gangs that stayed partially bound for a long time,
    or until the end.
    """
    taken = {moment.name for moment in moments if moment.is_evicted}.union(lost)
    torn = {moment.gang for moment in moments if moment.name in taken}
    bound_s: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for moment in moments:
        if moment.node and moment.gang not in torn:
            bound_s[moment.gang].setdefault(moment.name, moment.at_s)
    end_s = max((moment.at_s for moment in moments), default=0.0)
    found = []
    for gang, times in bound_s.items():
        last_s = max(times.values()) if len(times) == sizes.get(gang) else end_s
        seconds = last_s - min(times.values())
        if seconds > COMPLETE_S:
            found.append(f"gang {gang} was half bound for {seconds:.1f} s: {len(times)} pods")
    return found


def find_collected(moments: Sequence[Moment], node: str, since_s: float) -> set[str]:
    """Return the names of pods of a deleted node that Kubernetes has deleted since a time.

    The pod garbage collector of Kubernetes deletes pods whose node has not existed for 40 s.
    """
    now = {moment.name: moment for moment in moments}
    return {
        pod.name
        for pod in now.values()
        if pod.node == node and not (pod.is_there or pod.is_evicted) and pod.at_s >= since_s
    }


def find_shared_devices(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences about devices that are allocated to two claims together."""
    holder: dict[tuple[str, str, str], str] = {}
    found = []
    for claim in claims:
        allocation = claim.get("status", {}).get("allocation") or {}
        for each in allocation.get("devices", {}).get("results") or ():
            device = (each["driver"], each["pool"], each["device"])
            name = claim["metadata"]["name"]
            if (other := holder.setdefault(device, name)) != name:
                found.append(f"device {'/'.join(device)} was given to claims {other} and {name}")
    return found


def find_false_statuses(
    groups: Sequence[Mapping[str, Any]], moments: Sequence[Moment]
) -> list[str]:
    """Return sentences about PodGroups with a status that differs from their pods.

    The check comes after a quiet time. Terminating pods do not count, because a scheduler ignores
    them.
    """
    there = _staying_pods(moments)
    found = []
    for group in groups:
        name, status = group["metadata"]["name"], group.get("status", {})
        pods = [pod for pod in there if pod.gang == name]
        for field, phase in (("succeeded", "Succeeded"), ("running", "Running")):
            number = sum(pod.phase == phase for pod in pods)
            said = status.get(field, 0)
            if said != number:
                found.append(f"PodGroup {name} says {field}={said}, {number} pods are")
    return found


def find_false_allocation(queue: Mapping[str, Any], moments: Sequence[Moment]) -> list[str]:
    """Return sentences about a queue with an empty or wrong allocation in its status.

    All pods belong to this queue.
    """
    text = queue.get("status", {}).get("allocated", {}).get("cpu")
    said = None if text is None else parse_quantity(text).milli()
    held = sum(1000 * pod.cpus for pod in _staying_pods(moments) if pod.takes_room)
    if said == held:
        return []
    name = queue["metadata"]["name"]
    return [f"queue {name} says that it holds {said} milli-CPUs, its pods hold {held}"]


def find_admitted(
    jobs: Sequence[Mapping[str, Any]], submissions: Sequence[Submission]
) -> list[str]:
    """Return sentences about stored jobs that the webhook must deny, or has not changed."""
    flaws = {submission.name: submission.flaw for submission in submissions}
    found = []
    for job in jobs:
        name = job["metadata"]["name"]
        if flaws[name]:
            found.append(f"job {name} was admitted with an invalid {flaws[name]}")
        elif SUBMITTER not in job["metadata"].get("annotations", {}):
            found.append(f"job {name} was admitted without the record of its submitter")
    return found


def find_unended_jobs(
    jobs: Sequence[Mapping[str, Any]],
    moments: Sequence[Moment],
    submissions: Sequence[Submission],
) -> list[str]:
    """Return sentences about valid jobs that are not stored, not completed, or have a false status.

    A pod that has succeeded counts even after its deletion.
    """
    stored = {job["metadata"]["name"]: job for job in jobs}
    succeeded = {moment.name for moment in moments if moment.phase == "Succeeded"}
    found = []
    for each in submissions:
        if each.flaw:
            continue
        if each.name not in stored:
            found.append(f"job {each.name} was not stored")
            continue
        status = stored[each.name].get("status", {})
        phase = status.get("state", {}).get("phase")
        said = status.get("succeeded", 0)
        number = len(succeeded & {f"{each.name}-w-{i}" for i in range(each.replicas)})
        if (phase, said, number) != ("Completed", each.replicas, each.replicas):
            found.append(
                f"job {each.name} of {each.replicas} is {phase} and says succeeded={said}, "
                f"{number} pods have succeeded"
            )
    return found


def find_held_up(process: str, unreviewed: Mapping[str, int]) -> list[str]:
    """Return sentences about requests of a process that failed because the webhook was away.

    Only the PodGroups of new jobs may wait for the webhook. `unreviewed` contains the number of
    failed requests by method and resource.
    """
    return [
        f"{number} requests {key} of the {process} waited for the webhook"
        for key, number in unreviewed.items()
        if (process, key.rpartition("/")[2], key[:5]) != ("controllers", "podgroups", "POST ")
    ]


def _staying_pods(moments: Sequence[Moment]) -> list[Moment]:
    """Return the pods that exist at the end and are not terminating.

    The API server marks a pod as evicted before it deletes the pod. A pod that changes between the
    two writes, for example because it ends, is marked but not deleted.
    """
    now = {moment.name: moment for moment in moments}
    return [pod for pod in now.values() if pod.is_there and not pod.is_terminating]
