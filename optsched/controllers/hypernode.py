"""Discover HyperNodes from node labels or a network fabric, and count their nodes.

The ConfigMap of Volcano's controllers configures the sources `label` and `ufm` under
`networkTopologyDiscovery`; `ufm.py` implements `ufm`. Format and names follow Volcano's
pkg/controllers/hypernode. The name of a new HyperNode ends in a digest of the label instead of a
random suffix, so each HyperNode is created only once. HyperNodes that Volcano created keep their
names.

`status.nodeCount` counts the nodes of a HyperNode and its descendants, and is updated on every
change. Volcano counts direct members only, and updates the count only when the HyperNode changes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api.hypernode import parse_hypernode
from optsched.api.json_fields import (
    is_terminating,
    labels_of,
    name_of,
    records,
    spec_of,
    status_of,
    subobject,
    uid_of,
)
from optsched.api.kinds import CONFIG_MAP, HYPER_NODE, NODE, Ref
from optsched.api.meta import EventType
from optsched.api.wellknown import HOSTNAME
from optsched.controllers.controller import Controller, Scope
from optsched.controllers.effects import (
    Again,
    AskFabric,
    Create,
    Emit,
    Fabric,
    PatchStatus,
    delete_object,
    event_about,
    patch_object,
)
from optsched.controllers.ufm import (
    BY_UFM,
    SOURCE,
    build_hypernode,
    fabric_hypernodes,
    find_invalid_hosts,
)
from optsched.formats.codec.hypernodes import TopologyIndex
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.units import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect, Effects

CONFIG: Final = ("volcano-system", "volcano-controller-configmap")
CONFIG_FILE: Final = "volcano-controller.conf"
BY_LABEL: Final = "label"
MAX_TYPE: Final = 20
"""Maximum length of a topology type's name, in characters."""

HOUR_MS: Final = 3_600_000
"""Default time in ms between two queries of a fabric server, as in Volcano."""

RETRY_MS: Final = 60_000
"""Maximum time in ms between a failed query of a fabric server and the next query."""

LEAST_MS: Final = 10_000
"""Minimum time in ms between two queries of a fabric server; no configuration can shorten it."""

_ALL_HYPERNODES: Final = Ref(HYPER_NODE, "", "")
"""A reference that stands for all HyperNodes; its name is empty, so it matches no real object."""


class ConfigError(Exception):
    """Raised if the configuration in the ConfigMap is invalid."""


# --- configuration --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sources:
    """The configured sources of HyperNodes.

    Attributes
    ----------
    types
        Maps a topology type to node label keys, lowest tier first; None without the source `label`.
    fabric
        The fabric server to query; None without the source `ufm`.
    interval_ms
        The time between queries of the fabric server in ms.
    """

    types: Mapping[str, tuple[str, ...]] | None = None
    fabric: Fabric | None = None
    interval_ms: int = HOUR_MS


def read_sources(text: str, namespace: str = CONFIG[0]) -> Sources:
    """Parse the configured sources of HyperNodes.

    Raises ConfigError if the configuration is invalid or names a Secret outside of `namespace`.
    """
    found = Sources()
    documents = list(read_yaml(text))
    if not documents:
        return found
    if len(documents) != 1 or not isinstance(documents[0], Document):
        raise ConfigError(f"{CONFIG_FILE}: is not one YAML document")
    content = documents[0].value
    sources = records(content, "networkTopologyDiscovery") if isinstance(content, dict) else []
    for source in (each for each in sources if each.get("enabled") is True):
        config = subobject(source, "config")
        match source.get("source"):
            case "label":
                types = subobject(config, "networkTopologyTypes")
                found = replace(
                    found, types={n: _read_labels(n, levels) for n, levels in types.items()}
                )
            case "ufm":
                fabric, interval_ms = _read_fabric(source, config, namespace)
                found = replace(found, fabric=fabric, interval_ms=interval_ms)
            case other:
                raise ConfigError(
                    f"networkTopologyDiscovery: source {other!r} is not known: use label or ufm"
                )
    return found


def _read_fabric(
    source: Mapping[str, Any], config: Mapping[str, Any], namespace: str
) -> tuple[Fabric, int]:
    """Return the fabric server of a source, and the time between queries in ms."""
    endpoint = config.get("endpoint")
    if not isinstance(endpoint, str) or not endpoint.strip():
        raise ConfigError("ufm: config.endpoint is missing: set it to the URL of UFM, https://...")
    url = endpoint.strip().rstrip("/")
    scheme, has_scheme, _ = url.partition("://")
    if has_scheme and scheme not in ("http", "https"):
        raise ConfigError(f"ufm: config.endpoint {endpoint!r} is neither https nor http")
    secret = subobject(subobject(source, "credentials"), "secretRef")
    name = secret.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "ufm: credentials.secretRef.name is missing: name a Secret with username and password"
        )
    given = secret.get("namespace") or namespace
    if given != namespace:
        raise ConfigError(
            f"ufm: credentials.secretRef.namespace is {given!r}: controllers read only Secrets of "
            f"{namespace}; create the Secret there"
        )
    verifies = config.get("insecureSkipVerify") is not True
    fabric = Fabric(url if has_scheme else f"https://{url}", (namespace, name), verifies)
    written = source.get("interval")
    if written is None:
        return fabric, HOUR_MS
    try:
        interval_ms = parse_duration_ms(str(written))
    except DurationError as e:
        raise ConfigError(f"ufm: interval: {e}") from e
    if interval_ms < LEAST_MS:
        raise ConfigError(f"ufm: interval {written!r} is shorter than {LEAST_MS // 1000} seconds")
    return fabric, interval_ms


def _read_labels(name: str, levels: object) -> tuple[str, ...]:
    path = f"networkTopologyTypes.{name}"
    if len(name) > MAX_TYPE:
        raise ConfigError(f"{path}: has more than {MAX_TYPE} characters")
    tiers = levels if isinstance(levels, list) else []
    found = [each.get("nodeLabel") if isinstance(each, dict) else None for each in tiers]
    if not found or not all(isinstance(label, str) and label for label in found):
        raise ConfigError(f"{path}: list a nodeLabel for each tier, the highest first")
    if len(set(found)) < len(found):
        raise ConfigError(f"{path}: names a label twice")
    return tuple(str(label) for label in reversed(found) if label != HOSTNAME)


# --- desired HyperNodes --------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """A HyperNode to create for the nodes that share one value of a label.

    On tier 1, `members` holds names of nodes; on higher tiers, names of HyperNodes one tier below.
    """

    type: str
    tier: int
    label: str
    value: str
    members: set[str] = field(default_factory=set)


def hypernodes_by_labels(
    types: Mapping[str, Sequence[str]], nodes: Iterable[Manifest], known: Iterable[Manifest]
) -> dict[str, dict[str, Any]]:
    """Return the HyperNodes that the node labels define, keyed by name.

    `known` lists the existing HyperNodes.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for each in known:
        for label, value in labels_of(each).items():
            names.setdefault((label, value), []).append(name_of(each))
    names = {key: sorted(found) for key, found in names.items()}
    groups: dict[str, _Group] = {}
    for node in nodes:
        for type_, labels in types.items():
            # Each label adds the node to a HyperNode of one tier. If the node lacks the label of a
            # tier, no HyperNode of this or a higher tier contains the node.
            member = name_of(node)
            for tier, label in enumerate(labels, start=1):
                label_value = labels_of(node).get(label)
                if label_value is None:
                    break
                group = _Group(type_, tier, label, label_value)
                start = f"hypernode-{re.sub('[^a-z0-9.-]', '-', type_.lower())}-tier{tier}"
                # An existing HyperNode of the group keeps its name.
                kept = [n for n in names.get((label, label_value), ()) if n.startswith(start)]
                identity = f"{type_}\n{label}\n{label_value}".encode()
                name = kept[0] if kept else f"{start}-{hashlib.sha256(identity).hexdigest()[:8]}"
                groups.setdefault(name, group).members.add(member)
                member = name
    hypernodes: dict[str, dict[str, Any]] = {}
    for name, group in sorted(groups.items()):
        own_labels = {SOURCE: BY_LABEL, group.label: group.value}
        spec = {"tier": group.tier, "tierName": group.label}
        hypernodes[name] = build_hypernode(name, own_labels, spec, sorted(group.members))
    return hypernodes


# --- discovery -----------------------------------------------------------------------------------


class Discovery:
    """Creates HyperNodes from the configured sources.

    `config` is the namespace and name of the ConfigMap that configures the sources.
    """

    def __init__(self, config: tuple[str, str] = CONFIG) -> None:
        self._ref = Ref(CONFIG_MAP, *config)

    @property
    def controller(self) -> Controller:
        """The discovery controller; it watches its ConfigMap, nodes and HyperNodes."""
        return Controller(
            name="hypernode",
            kind=CONFIG_MAP,
            decide=self.decide,
            wakes=dict.fromkeys((NODE, HYPER_NODE), lambda _obj, _world: (self._ref,)),
            # If another client changes the labels or the spec of a HyperNode, the controller
            # restores them.
            facets={NODE: labels_of, HYPER_NODE: lambda obj: (labels_of(obj), spec_of(obj))},
            scopes={CONFIG_MAP: Scope(self._ref.namespace, self._ref.name)},
        )

    def decide(self, ref: Ref, world: World) -> Effects:
        """Return the HyperNode creations, changes and deletions that the ConfigMap requires."""
        config = world.get(CONFIG_MAP, ref.namespace, ref.name) if ref == self._ref else None
        if config is None:
            return ()
        try:
            text = str(subobject(config, "data").get(CONFIG_FILE) or "")
            sources = read_sources(text, ref.namespace)
        except ConfigError as e:
            return (_warn(config, "InvalidTopologyDiscovery", str(e)),)
        effects: list[Effect] = []
        if sources.types is not None:
            known = _hypernodes_from(BY_LABEL, world)
            nodes = (node for node in world.listed(NODE) if not is_terminating(node))
            effects += _find_changes(hypernodes_by_labels(sources.types, nodes, known), known)
        return (*effects, *self._discover_fabric(config, sources, world))

    def _discover_fabric(
        self, config: Manifest, sources: Sources, world: World
    ) -> Iterator[Effect]:
        """Yield the next query of the fabric server, if due, and the changes to HyperNodes."""
        fabric = sources.fabric
        if fabric is None:
            return
        fabric_answer = world.fabric_answer(fabric)
        if fabric_answer is None:
            yield AskFabric(fabric)
            yield Again(0.0)
            return
        pause_ms = (
            min(sources.interval_ms, RETRY_MS) if fabric_answer.problem else sources.interval_ms
        )
        left_ms = fabric_answer.at_ms + pause_ms - world.now_ms
        if left_ms <= 0:
            yield AskFabric(fabric)
        yield Again(max(left_ms, 0) / 1000)
        known = _hypernodes_from(BY_UFM, world)
        desired = fabric_hypernodes(fabric_answer.links, known)
        others = {name_of(h) for h in world.listed(HYPER_NODE)} - {name_of(h) for h in known}
        taken = sorted(desired.keys() & others)
        problem = fabric_answer.problem
        if not problem and not desired:
            problem = f"{fabric.url} lists no host with a port connected to a switch"
        if not problem and taken:
            problem = f"HyperNode {taken[0]} exists but was not created from UFM: rename it"
        if problem:
            yield _warn(config, "TopologyNotDiscovered", problem)
            return
        if invalid_hosts := find_invalid_hosts(fabric_answer.links):
            number, example = len(invalid_hosts), invalid_hosts[0]
            message = f"{fabric.url}: {number} invalid host names, such as {example!r}"
            yield _warn(config, "HostsPassedOver", message)
        yield from _find_changes(desired, known)


def _hypernodes_from(source: str, world: World) -> list[Manifest]:
    return [h for h in world.listed(HYPER_NODE) if labels_of(h).get(SOURCE) == source]


def _warn(config: Manifest, reason: str, message: str) -> Emit:
    return event_about(CONFIG_MAP, config, EventType.WARNING, reason, message, code=message)


def _find_changes(desired: Mapping[str, Manifest], known: Iterable[Manifest]) -> Iterator[Effect]:
    existing = {name_of(hypernode): hypernode for hypernode in known}
    for name, hypernode in desired.items():
        if name not in existing:
            yield Create(HYPER_NODE, hypernode)
        elif spec_of(existing[name]) != hypernode["spec"]:
            yield patch_object(HYPER_NODE, existing[name], {"spec": hypernode["spec"]})
    for name in existing.keys() - desired.keys():
        if not is_terminating(existing[name]):
            yield delete_object(HYPER_NODE, existing[name])


# --- node counts ---------------------------------------------------------------------------------


def count_nodes(ref: Ref, world: World) -> Effects:
    """Return the patches that correct the HyperNodes' node counts."""
    if ref != _ALL_HYPERNODES:
        return ()
    index = TopologyIndex()
    for node in world.listed(NODE):
        index.put_node(name_of(node), labels_of(node))
    hypernodes = world.listed(HYPER_NODE)
    for obj in hypernodes:
        parsed, _ = parse_hypernode(obj)
        if parsed is not None:
            index.put_hypernode(parsed)
    topology = index.topology()
    counts: Counter[str] = Counter()
    for hypernode in topology.hypernodes:
        at = hypernode.name
        while at:
            counts[at] += len(hypernode.nodes)
            at = topology.by_name[at].parent if at in topology.by_name else ""
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


NODE_COUNTS: Final = Controller(
    name="hypernode",
    kind=HYPER_NODE,
    decide=count_nodes,
    wakes=dict.fromkeys((NODE, HYPER_NODE), lambda _obj, _world: (_ALL_HYPERNODES,)),
    facets={NODE: labels_of, HYPER_NODE: spec_of},
)
