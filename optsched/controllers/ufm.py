"""HyperNodes of an InfiniBand fabric, discovered through NVIDIA UFM.

UFM lists the ports of a fabric. For each port of a host, UFM names the leaf switch to which the
port is connected. Hosts that are connected through leaf switches form one HyperNode of tier 1. One
HyperNode of tier 2 contains all HyperNodes of tier 1. Format, groups and names follow Volcano
(pkg/controllers/hypernode/discovery/ufm). Volcano numbers HyperNodes in the current order of the
leaf switches, so the names of HyperNodes can change. optsched reuses the name of the existing
HyperNode that contains most of the hosts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.fields import NAME_PATTERN
from optsched.api.hypernode import MemberType
from optsched.api.json_fields import name_of, records, spec_of, subobject
from optsched.api.kinds import HYPER_NODE
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.api.json_fields import Manifest

SOURCE: Final = "volcano.sh/network-topology-source"
"""Label of HyperNodes; its value is the source that discovered the HyperNode."""

BY_UFM: Final = "ufm"
PATH: Final = "/ufmRest/resources/ports"
LEAF: Final = "leaf-hn-"
SPINE: Final = "spine-hn"
_LONGEST: Final = 253
_HOST_PORT: Final = "Computer"
"""A port belongs to a host if its description contains this word."""

Link: TypeAlias = tuple[str, str]
"""The names of a host and of a leaf switch to which one of the host's ports is connected."""


class UfmError(ValueError):
    """Raised if a response from UFM cannot be parsed."""


def read_links(body: bytes) -> tuple[Link, ...]:
    """Return the distinct links from hosts to leaf switches in a UFM response; raises UfmError.

    Ports of switches are skipped, and so are ports for which UFM names no host or no switch.
    """
    try:
        ports = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise UfmError(f"the response is not JSON: {why_unreadable(e)}") from e
    if not isinstance(ports, list):
        raise UfmError("the response is not a list of ports")
    found: set[Link] = set()
    for port in ports:
        if isinstance(port, dict) and _HOST_PORT in str(port.get("description")):
            host, switch = port.get("system_name"), port.get("peer_node_name")
            if isinstance(host, str) and isinstance(switch, str) and host and switch:
                found.add((host, switch))
    return tuple(sorted(found))


def leaf_groups(links: Iterable[Link]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return a (leaf switch, hosts) pair for each group of hosts that leaf switches connect.

    If a group has several leaf switches, its pair names the alphabetically first switch. Pairs and
    hosts are sorted by name.
    """
    hosts_of: defaultdict[str, set[str]] = defaultdict(set)
    switches_of: defaultdict[str, set[str]] = defaultdict(set)
    for host, switch in links:
        hosts_of[switch].add(host)
        switches_of[host].add(switch)
    found: list[tuple[str, tuple[str, ...]]] = []
    seen: set[str] = set()
    for first in sorted(hosts_of):
        if first in seen:
            continue
        hosts, todo = set[str](), [first]
        while todo:
            switch = todo.pop()
            if switch not in seen:
                seen.add(switch)
                hosts |= hosts_of[switch]
                todo += {each for host in hosts_of[switch] for each in switches_of[host]}
        found.append((first, tuple(sorted(hosts))))
    return tuple(found)


def find_invalid_hosts(links: Iterable[Link]) -> tuple[str, ...]:
    """Return the sorted host names that are not valid as Kubernetes node names."""
    names = sorted({host for host, _ in links})
    return tuple(
        name for name in names if len(name) > _LONGEST or re.fullmatch(NAME_PATTERN, name) is None
    )


def fabric_hypernodes(
    links: Sequence[Link], known: Iterable[Manifest]
) -> dict[str, dict[str, Any]]:
    """Return the HyperNodes that the links define, keyed by name.

    `known` lists the existing HyperNodes that UFM discovery created.
    """
    invalid_hosts = set(find_invalid_hosts(links))
    groups = leaf_groups(link for link in links if link[0] not in invalid_hosts)
    before = {
        name_of(each): {
            str(subobject(subobject(member, "selector"), "exactMatch").get("name"))
            for member in records(spec_of(each), "members")
        }
        for each in known
        if name_of(each).startswith(LEAF)
    }
    # Each group of hosts gets the name of the existing HyperNode that contains most of these hosts.
    pairs = (
        (-len(nodes & set(hosts)), name, i)
        for i, (_, hosts) in enumerate(groups)
        for name, nodes in before.items()
    )
    taken: dict[int, str] = {}
    for shared, name, i in sorted(pairs):
        if shared and i not in taken and name not in taken.values():
            taken[i] = name
    hypernodes: dict[str, dict[str, Any]] = {}
    for i, (first, hosts) in enumerate(groups):
        name = taken.get(i) or f"{LEAF}{hashlib.sha256(first.encode()).hexdigest()[:8]}"
        hypernodes[name] = build_hypernode(name, {SOURCE: BY_UFM}, {"tier": 1}, hosts)
    if hypernodes:
        hypernodes[SPINE] = build_hypernode(
            SPINE, {SOURCE: BY_UFM}, {"tier": 2}, sorted(hypernodes)
        )
    return hypernodes


def build_hypernode(
    name: str, labels: Mapping[str, str], spec: Mapping[str, Any], members: Iterable[str]
) -> dict[str, Any]:
    """Return a HyperNode manifest; its members are nodes on tier 1, HyperNodes on other tiers."""
    kind = MemberType.NODE if spec["tier"] == 1 else MemberType.HYPER_NODE
    selected = [{"type": kind.value, "selector": {"exactMatch": {"name": n}}} for n in members]
    return {
        "apiVersion": HYPER_NODE.api_version,
        "kind": HYPER_NODE.kind,
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {**spec, "members": selected},
    }
