"""HyperNodes: found by the labels of nodes, and told how many nodes they have.

Which labels, the ConfigMap of Volcano's controllers says (`networkTopologyDiscovery`, source
`label`); its format and the names are those of pkg/controllers/hypernode. A name ends in a digest
of the label instead of chance, so that a HyperNode is made once; those that Volcano has made keep
their names.

`status.nodeCount` counts nodes, all the way down and whenever they come and go; Volcano counts
direct members, when a HyperNode changes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from optsched.api.events import EventType
from optsched.api.hypernode import MemberType, parse_hypernode
from optsched.api.kinds import CONFIG_MAP, HYPER_NODE, NODE, Ref
from optsched.controllers.controller import Controller, Scope
from optsched.controllers.effects import Create, Delete, Emit, Patch, PatchStatus
from optsched.controllers.manifests import (
    is_leaving,
    labels_of,
    name_of,
    part,
    spec_of,
    status_of,
    uid_of,
)
from optsched.formats.text import Document, read_yaml
from optsched.formats.topology import TopologyIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.controllers.effects import Effect, Effects, Manifest
    from optsched.controllers.world import World

CONFIG: Final = ("volcano-system", "volcano-controller-configmap")
CONFIG_FILE: Final = "volcano-controller.conf"
SOURCE: Final = "volcano.sh/network-topology-source"
BY_LABEL: Final = "label"
HOSTNAME: Final = "kubernetes.io/hostname"
MAX_TYPE: Final = 20
"""Characters of the name of a type."""

_ALL: Final = Ref(HYPER_NODE, "", "")
"""All HyperNodes together; no object has no name."""


class ConfigError(Exception):
    """What the ConfigMap says has no reading."""


# --- what is asked for ---------------------------------------------------------------------------


def read_types(text: str) -> dict[str, tuple[str, ...]] | None:
    """Labels by type, those of the lowest tier first; None where nobody asks for discovery.

    Raises ConfigError for what has no reading.
    """
    documents = list(read_yaml(text))
    if not documents:
        return None
    if len(documents) != 1 or not isinstance(documents[0], Document):
        raise ConfigError(f"{CONFIG_FILE}: is not one YAML document")
    content = documents[0].value
    sources = content.get("networkTopologyDiscovery") if isinstance(content, dict) else None
    found: dict[str, tuple[str, ...]] | None = None
    for source in sources if isinstance(sources, list) else ():
        if not isinstance(source, dict) or source.get("enabled") is not True:
            continue
        if source.get("source") != BY_LABEL:
            raise ConfigError(
                f"networkTopologyDiscovery: source {source.get('source')!r} is not known: use label"
            )
        types = part(part(source, "config"), "networkTopologyTypes")
        found = {name: _labels(name, levels) for name, levels in types.items()}
    return found


def _labels(name: str, levels: object) -> tuple[str, ...]:
    path = f"networkTopologyTypes.{name}"
    if len(name) > MAX_TYPE:
        raise ConfigError(f"{path}: has more than {MAX_TYPE} characters")
    entries = levels if isinstance(levels, list) else []
    found = [each.get("nodeLabel") if isinstance(each, dict) else None for each in entries]
    if not found or not all(isinstance(label, str) and label for label in found):
        raise ConfigError(f"{path}: list a nodeLabel for each tier, the highest first")
    if len(set(found)) < len(found):
        raise ConfigError(f"{path}: names a label twice")
    return tuple(str(label) for label in reversed(found) if label != HOSTNAME)


# --- what there should be ------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """Nodes, or HyperNodes of the tier below, that share the value of a label."""

    type: str
    tier: int
    label: str
    value: str
    members: set[str] = field(default_factory=set)


def _name(group: _Group, known: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """The name that a HyperNode of the group has already, or the one that it gets."""
    start = f"hypernode-{re.sub('[^a-z0-9.-]', '-', group.type.lower())}-tier{group.tier}"
    for name in known.get((group.label, group.value), ()):
        if name.startswith(start):
            return name
    told = f"{group.type}\n{group.label}\n{group.value}"
    return f"{start}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def wanted_hypernodes(
    types: Mapping[str, Sequence[str]], nodes: Iterable[Manifest], known: Iterable[Manifest]
) -> dict[str, dict[str, Any]]:
    """The HyperNodes that the labels of nodes make, by name; known: those that there are."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in known:
        for label, value in labels_of(each).items():
            names.setdefault((label, value), []).append(name_of(each))
    names = {key: sorted(found) for key, found in names.items()}
    groups: dict[str, _Group] = {}
    for node in nodes:
        for type_, labels in types.items():
            _take(node, type_, labels, groups, names)
    return {name: _hypernode(name, group) for name, group in sorted(groups.items())}


def _take(
    node: Manifest,
    type_: str,
    labels: Sequence[str],
    groups: dict[str, _Group],
    names: Mapping[tuple[str, str], Sequence[str]],
) -> None:
    """Put a node into its groups, from the lowest tier up to the first label that it lacks."""
    member = name_of(node)
    for tier, label in enumerate(labels, start=1):
        value = labels_of(node).get(label)
        if value is None:
            return
        group = _Group(type_, tier, label, value)
        name = _name(group, names)
        groups.setdefault(name, group).members.add(member)
        member = name


def _hypernode(name: str, group: _Group) -> dict[str, Any]:
    kind = MemberType.NODE if group.tier == 1 else MemberType.HYPER_NODE
    members = [
        {"type": kind.value, "selector": {"exactMatch": {"name": member}}}
        for member in sorted(group.members)
    ]
    return {
        "apiVersion": HYPER_NODE.api_version,
        "kind": HYPER_NODE.kind,
        "metadata": {"name": name, "labels": {SOURCE: BY_LABEL, group.label: group.value}},
        "spec": {"tier": group.tier, "tierName": group.label, "members": members},
    }


# --- discovery -----------------------------------------------------------------------------------


class Discovery:
    """Makes HyperNodes of the labels of nodes; config: the ConfigMap that says which labels."""

    def __init__(self, config: tuple[str, str] = CONFIG) -> None:
        self._ref = Ref(CONFIG_MAP, *config)

    @property
    def controller(self) -> Controller:
        """The controller, and what wakes it."""
        return Controller(
            name="hypernode",
            kind=CONFIG_MAP,
            decide=self.decide,
            wakes={NODE: self._wakes, HYPER_NODE: self._wakes},
            facets={NODE: labels_of, HYPER_NODE: _of_others},
            scopes={CONFIG_MAP: Scope(self._ref.namespace, self._ref.name)},
        )

    def decide(self, ref: Ref, world: World) -> Effects:
        """Make, change and delete HyperNodes, if the ConfigMap asks for it."""
        config = world.get(CONFIG_MAP, ref.namespace, ref.name) if ref == self._ref else None
        if config is None:
            return ()
        try:
            types = read_types(str(part(config, "data").get(CONFIG_FILE) or ""))
        except ConfigError as e:
            return (self._told(config, str(e)),)
        if types is None:
            return ()
        known = [h for h in world.listed(HYPER_NODE) if labels_of(h).get(SOURCE) == BY_LABEL]
        nodes = (node for node in world.listed(NODE) if not is_leaving(node))
        return tuple(_changes(wanted_hypernodes(types, nodes, known), known))

    def _wakes(self, _: Manifest, __: World) -> tuple[Ref]:
        return (self._ref,)

    def _told(self, config: Manifest, message: str) -> Emit:
        ref = self._ref
        return Emit(
            CONFIG_MAP,
            ref.namespace,
            ref.name,
            uid_of(config),
            EventType.WARNING,
            "InvalidTopologyDiscovery",
            message,
            code=message,
        )


def _of_others(hypernode: Manifest) -> object:
    """What of a HyperNode others may change that is to be put right."""
    return labels_of(hypernode), spec_of(hypernode)


def _changes(wanted: Mapping[str, Manifest], known: Iterable[Manifest]) -> Iterator[Effect]:
    there = {name_of(hypernode): hypernode for hypernode in known}
    for name, hypernode in wanted.items():
        if name not in there:
            yield Create(HYPER_NODE, hypernode)
        elif spec_of(there[name]) != hypernode["spec"]:
            uid = uid_of(there[name])
            yield Patch(HYPER_NODE, "", name, {"spec": hypernode["spec"]}, uid)
    for name in there.keys() - wanted.keys():
        if not is_leaving(there[name]):
            yield Delete(HYPER_NODE, "", name, uid_of(there[name]))


# --- how many nodes ------------------------------------------------------------------------------


def count_nodes(ref: Ref, world: World) -> Effects:
    """Say of each HyperNode how many nodes it has."""
    if ref != _ALL:
        return ()
    index = TopologyIndex()
    for node in world.listed(NODE):
        index.put_node(name_of(node), labels_of(node))
    hypernodes = world.listed(HYPER_NODE)
    for obj in hypernodes:
        parsed, _ = parse_hypernode(obj)
        if parsed is not None:
            index.put(parsed)
    counts = _counts(index)
    return tuple(
        PatchStatus(
            HYPER_NODE,
            "",
            name_of(obj),
            {"status": {"nodeCount": counts[name_of(obj)]}},
            uid_of(obj),
        )
        for obj in hypernodes
        if (status_of(obj).get("nodeCount") or 0) != counts[name_of(obj)]
    )


def _counts(index: TopologyIndex) -> Counter[str]:
    topology = index.topology()
    counts: Counter[str] = Counter()
    for hypernode in topology.hypernodes:
        at = hypernode.name
        while at:
            counts[at] += len(hypernode.nodes)
            at = topology.by_name[at].parent if at in topology.by_name else ""
    return counts


def _all(_: Manifest, __: World) -> tuple[Ref]:
    return (_ALL,)


NODE_COUNTS: Final = Controller(
    name="hypernode",
    kind=HYPER_NODE,
    decide=count_nodes,
    wakes={NODE: _all, HYPER_NODE: _all},
    facets={NODE: labels_of, HYPER_NODE: spec_of},
)
