"""Reduce a cluster while a check still reports the same finding."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from tests.oracle.manifests import gang_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.oracle.manifests import Cluster


def minimised(cluster: Cluster, still: Callable[[Cluster], bool]) -> Cluster:
    """Remove gangs, pods, nodes, queues and fields as long as `still` is true."""
    best, again = cluster, True
    while again:
        again, at = False, 0
        while (smaller := next(islice(_smaller(best), at, None), None)) is not None:
            if still(smaller):
                best, again = smaller, True
            else:
                at += 1
    return best


def _smaller(cluster: Cluster) -> Iterator[Cluster]:
    for i, made in reversed(list(enumerate(cluster.objects))):
        if made["kind"] == "Queue" and _is_used(cluster, made["metadata"]["name"]):
            continue
        after = cluster.copy()
        del after.objects[i]
        name = made["metadata"]["name"]
        if made["kind"] == "PodGroup":
            after.objects = [o for o in after.objects if gang_of(o) != name]
        if made["kind"] == "Node":
            there = {"nodeName": name}.items()
            after.objects = [o for o in after.objects if not there <= o.get("spec", {}).items()]
            _forget(after, name)
        if made["kind"] == "HyperNode":
            _forget(after, name)
        if made["kind"] == "PriorityClass":
            for other in after.objects:
                other.get("spec", {}).pop("priorityClassName", None)
        yield after
    for i, made in enumerate(cluster.objects):
        for field in list(made.get("spec", {})):
            if field in ("nodeName", "containers", "schedulerName", "tier", "members", "queue"):
                continue
            if field == "minMember":
                continue
            after = cluster.copy()
            del after.objects[i]["spec"][field]
            yield after


def _forget(cluster: Cluster, member: str) -> None:
    for made in cluster.objects:
        if made["kind"] == "HyperNode":
            made["spec"]["members"] = [
                m for m in made["spec"]["members"] if m["selector"]["exactMatch"]["name"] != member
            ]


def _is_used(cluster: Cluster, queue: str) -> bool:
    return any(
        queue in (o["spec"].get("queue"), o["spec"].get("parent"))
        for o in cluster.objects
        if "spec" in o
    )
