"""Compare the outcome of a scenario with the expected outcome."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.cluster.snapshot import Snapshot
    from tests.conformance.play import Played
    from tests.conformance.scenarios import Scenario


def differences(
    expect: Mapping[str, Any], played: Played, snapshot: Snapshot, scenario: Scenario
) -> list[str]:
    """Return the expectations that an outcome does not meet.

    If Volcano's outcome is random, each observed outcome is accepted.
    """
    return [
        *(f"broken: {b}" for b in played.broken),
        *_binds(expect, played, scenario),
        *_evictions(expect, played),
        *_pipelined(expect, played, snapshot),
        *_statuses(expect, played),
        *_custom(expect.get("custom", {}), played, snapshot),
    ]


def _binds(expect: Mapping[str, Any], played: Played, scenario: Scenario) -> Iterator[str]:
    if "bindsNum" in expect and len(played.binds) != expect["bindsNum"]:
        yield f"{len(played.binds)} binds, expected {expect['bindsNum']}: {dict(played.binds)}"
    if "binds" in expect and dict(played.binds) != expect["binds"]:
        yield f"binds {dict(played.binds)}, expected {expect['binds']}"
    elif "binds" not in expect and scenario.variants:
        leaf = leaf_of(scenario)
        seen = [_by_leaf(v["binds"], leaf) for v in scenario.variants]
        ours = _by_leaf(played.binds, leaf)
        if ours not in seen and len(ours) >= min(map(len, seen)):
            yield f"binds {dict(played.binds)} are none of the outcomes seen, nor closer together"


def leaf_of(scenario: Scenario) -> dict[str, str]:
    """Return the leaf HyperNode of each node, by node name."""
    leaf = {}
    for hypernode in scenario.data["objects"].get("hyperNodes", []):
        for member in hypernode["spec"].get("members", []):
            if member["type"] == "Node" and "exactMatch" in member["selector"]:
                leaf[member["selector"]["exactMatch"]["name"]] = hypernode["metadata"]["name"]
    return leaf


def _by_leaf(binds: Mapping[str, str], leaf: Mapping[str, str]) -> Counter[str]:
    """Return the number of binds by leaf HyperNode.

    The choice among the leaf's nodes and among equal pods is random.
    """
    return Counter(leaf.get(node, "") for node in binds.values())


def _evictions(expect: Mapping[str, Any], played: Played) -> Iterator[str]:
    wanted = expect.get("evicted")
    if wanted is not None and played.evicted != set(wanted):
        yield f"evicted {sorted(played.evicted)}, expected {sorted(wanted)}"
    if "evictNum" in expect and len(played.evicted) != expect["evictNum"]:
        yield f"{len(played.evicted)} evicted, expected {expect['evictNum']}"


def _pipelined(expect: Mapping[str, Any], played: Played, snapshot: Snapshot) -> Iterator[str]:
    for key, nodes in expect.get("pipelined", {}).items():
        gang = snapshot.gang_by_key[key]
        where = {t.key: played.pipelined[t.key] for t in gang.tasks if t.key in played.pipelined}
        if not where or not set(where.values()) <= set(nodes):
            yield f"{key} waits for {where}, expected on {nodes}"


def _statuses(expect: Mapping[str, Any], played: Played) -> Iterator[str]:
    for key, phase in expect.get("podGroupPhase", {}).items():
        if played.phases[key] != phase:
            yield f"phase of {key} is {played.phases[key]}, expected {phase}"
    for key, numbers in expect.get("taskStatusNums", {}).items():
        if dict(played.statuses[key]) != numbers:
            yield f"tasks of {key} are {dict(played.statuses[key])}, expected {numbers}"


def _custom(custom: Mapping[str, Any], played: Played, snapshot: Snapshot) -> Iterator[str]:
    """Yield the gangs that differ from the custom expectation `jobAllocated`."""
    assert custom.keys() <= {"jobAllocated"}, sorted(custom)
    for name, wanted in custom.get("jobAllocated", {}).items():
        held = _held(name, played, snapshot)
        asked = {"cpu": wanted["MilliCPU"], "memory": wanted["Memory"]}
        asked |= {n: int(v) for n, v in wanted["ScalarResources"].items()}
        short = {r: n for r, n in asked.items() if held[r] != n}
        if short:
            yield f"{name} holds {dict(held)}, expected {asked}"


def _held(name: str, played: Played, snapshot: Snapshot) -> Counter[str]:
    held: Counter[str] = Counter()
    for task in next(g for g in snapshot.gangs if g.name == name).tasks:
        if task.key in played.binds or task.node:
            held.update({"pods": 1, **dict(task.shape.request)})
    return held


def worse(expect: Mapping[str, Any], played: Played) -> list[str]:
    """Return the violations, the missing binds and the excess evictions of an outcome."""
    found = [f"broken: {b}" for b in played.broken]
    if len(played.binds) < expect.get("bindsNum", 0):
        found.append(f"{len(played.binds)} binds, expected {expect['bindsNum']}")
    if len(played.evicted) > expect.get("evictNum", len(played.evicted)):
        found.append(f"{len(played.evicted)} evicted, expected {expect['evictNum']}")
    return found
