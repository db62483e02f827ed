"""Read and write the tree of HyperNodes, and the network topology requests of PodGroups.

Contradictions between HyperNodes are resolved and reported: a second parent, a cycle, or a node
that two HyperNodes list. Only the contradictory HyperNode members are ignored, so a HyperNode never
covers nodes outside its member list. In case of a contradiction, Volcano stops all jobs with a
topology request (`pkg/scheduler/api/hyper_node_info.go`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.hypernode import MemberType
from optsched.api.podgroup import TopologyMode as ApiMode
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.topology import (
    NO_TOPOLOGY,
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
)
from optsched.formats.codec.selectors import label_selector_fields
from optsched.formats.files.diagnostics import join_messages
from optsched.units import FieldError
from optsched.units.patterns import Pattern, parse_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.fields import LabelSelector as ApiSelector
    from optsched.api.hypernode import HyperNode as ApiHyperNode
    from optsched.api.hypernode import Member
    from optsched.api.podgroup import NetworkTopology, SubGroupPolicy
    from optsched.cluster.snapshot import Gang

_MemberSelector: TypeAlias = "Pattern | LabelSelector"
"""A selector of HyperNode members: nodes whose names match a pattern, or with given labels."""

_MEMBERS: Final = "spec.members"
_SHOWN: Final = 3
_LITERAL = re.compile(r"\^([A-Za-z0-9-]*)(?![*+?{|])")


# --- requests -------------------------------------------------------------------------------------


def topology_request(topology: NetworkTopology | None) -> TopologyRequest | None:
    """Convert the network topology of a PodGroup or subgroup policy to a `TopologyRequest`."""
    if topology is None:
        return None
    mode = TopologyMode.HARD if topology.mode is ApiMode.HARD else TopologyMode.SOFT
    return TopologyRequest(mode, topology.highest_tier, topology.highest_tier_name)


def sub_group_rule(policy: SubGroupPolicy) -> SubGroupRule:
    """Convert one policy in a PodGroup's `subGroupPolicy` to a `SubGroupRule`."""
    return SubGroupRule(
        name=policy.name,
        size=policy.size,
        min_groups=policy.min_sub_groups,
        selector=None if policy.selector is None else _selector(policy.selector),
        keys=policy.match_label_keys,
        topology=topology_request(policy.topology),
    )


def _selector(selector: ApiSelector) -> LabelSelector:
    exact = (Requirement(k, Operator.IN, (v,)) for k, v in sorted(selector.match_labels.items()))
    named = (c for c in selector.conditions if c.key and c.operator)
    more = (Requirement(c.key, Operator(c.operator), c.values) for c in named)
    return LabelSelector((*exact, *more))


# --- nodes ----------------------------------------------------------------------------------------


class NodeIndex:
    """An index of nodes by name and label, with a cache of the nodes that match each selector."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._by_label: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._member_nodes: dict[_MemberSelector, set[str]] = {}
        self._sorted: list[str] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._labels

    def set_node(self, name: str, labels: Mapping[str, str]) -> bool:
        """Store a node; return False if its labels are unchanged."""
        if self._labels.get(name) == labels:
            return False
        self.drop(name)
        self._labels[name] = labels
        for label in labels.items():
            self._by_label[label].add(name)
        for selector, selected_nodes in self._member_nodes.items():
            if _selects(selector, name, labels):
                selected_nodes.add(name)
        return True

    def drop(self, name: str) -> bool:
        """Remove a node; return False if the node is not stored."""
        labels = self._labels.pop(name, None)
        if labels is None:
            return False
        for label in labels.items():
            labelled = self._by_label[label]
            labelled.discard(name)
            if not labelled:
                # Each node has its own host name label, so every deleted node would leave an empty
                # node set.
                del self._by_label[label]
        for selected_nodes in self._member_nodes.values():
            selected_nodes.discard(name)
        self._sorted = None
        return True

    def keep_selectors(self, selectors: Iterable[_MemberSelector]) -> None:
        """Drop all cached node sets except those of the given selectors."""
        kept = set(selectors)
        self._member_nodes = {
            selector: selected_nodes
            for selector, selected_nodes in self._member_nodes.items()
            if selector in kept
        }

    def selected_nodes(self, selector: _MemberSelector) -> set[str]:
        """Return the nodes that a member selector matches; callers must not modify the set."""
        if selector not in self._member_nodes:
            # Select candidate nodes by the literal prefix of a pattern, or by the values of a
            # label.
            likely: Iterable[str] = self._labels
            if isinstance(selector, Pattern):
                if self._sorted is None or len(self._sorted) != len(self._labels):
                    self._sorted = sorted(self._labels)
                literal = _LITERAL.match(selector.text)
                if literal is not None and "|" not in selector.text:
                    text = literal.group(1)
                    first = bisect_left(self._sorted, text)
                    likely = self._sorted[first : bisect_left(self._sorted, f"{text}\x7f")]
            else:
                lists = (r for r in selector.requirements if r.operator is Operator.IN)
                if (listed := next(lists, None)) is not None:
                    parts = (self._by_label.get((listed.key, v), set()) for v in listed.values)
                    likely = set[str]().union(*parts)
            self._member_nodes[selector] = {
                n for n in likely if _selects(selector, n, self._labels[n])
            }
        return self._member_nodes[selector]


def _selects(selector: _MemberSelector, name: str, labels: Mapping[str, str]) -> bool:
    if isinstance(selector, Pattern):
        return selector.matches(name)
    # Unlike other empty selectors, an empty member selector matches no node (Volcano `GetMembers`).
    return bool(selector.requirements) and selector.matches(labels)


# --- the tree -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    """A HyperNode while the tree is built; `tier` is None if `spec.tier` is invalid."""

    name: str
    tier: int | None
    tier_name: str
    members: tuple[Member, ...]
    parent: str = ""
    nodes: list[str] = field(default_factory=list)
    remarks: list[FieldError] = field(default_factory=list)

    def remark(self, number: int, value: object, message: str) -> None:
        self.remarks.append(FieldError(f"{_MEMBERS}[{number}]", value, message))


class TopologyIndex:
    """The tree of HyperNodes and nodes, updated by watch events.

    Attributes
    ----------
    remarks
        Ignored members of valid HyperNodes, keyed by HyperNode name; updated by `topology`.

    """

    def __init__(self) -> None:
        self.nodes = NodeIndex()
        self.remarks: Mapping[str, tuple[FieldError, ...]] = {}
        self._hypernodes: dict[str, ApiHyperNode] = {}
        self._topology = NO_TOPOLOGY
        self._is_stale = False

    def put_node(self, name: str, labels: Mapping[str, str]) -> None:
        """Store a node."""
        self._is_stale |= self.nodes.set_node(name, labels)

    def drop_node(self, name: str) -> None:
        """Remove a node."""
        self._is_stale |= self.nodes.drop(name)

    def put_hypernode(self, hypernode: ApiHyperNode) -> None:
        """Store a HyperNode."""
        self._hypernodes[hypernode.name] = hypernode
        self._is_stale = True

    def drop(self, name: str) -> None:
        """Remove a HyperNode."""
        self._is_stale |= self._hypernodes.pop(name, None) is not None

    def topology(self) -> Topology:
        """Return the current HyperNode tree; until the tree changes, return the same object."""
        if not self._is_stale:
            return self._topology
        self._is_stale = False
        entries = {
            name: _Entry(name, h.tier, h.tier_name, h.members)
            for name, h in sorted(self._hypernodes.items())
        }
        usable = [e for e in entries.values() if e.tier is not None]
        for parent in usable:
            for number, member in enumerate(parent.members):
                if member.type is not MemberType.HYPER_NODE:
                    continue
                child = entries.get(member.name)
                problem = _no_child(parent, child, entries)
                if problem or child is None:
                    parent.remark(number, member.name, problem)
                else:
                    child.parent = parent.name
        self.nodes.keep_selectors(
            selector
            for e in usable
            for m in e.members
            if (selector := _member_selector(m)) is not None
        )
        _assign_nodes(usable, self.nodes)
        self.remarks = {e.name: tuple(e.remarks) for e in usable if e.remarks}
        hypernodes = tuple(
            HyperNode(e.name, e.tier or 0, e.tier_name, e.parent, tuple(sorted(e.nodes)))
            for e in usable
        )
        problems = {
            e.name: tuple(join_messages([error]) for error in errors)
            for e in entries.values()
            if (errors := (*self._hypernodes[e.name].errors, *e.remarks))
        }
        fresh = Topology(hypernodes, problems)
        if fresh != self._topology or fresh.problems != self._topology.problems:
            self._topology = fresh
        return self._topology


def _member_selector(member: Member) -> _MemberSelector | None:
    if member.pattern:
        return parse_pattern(member.pattern)
    return None if member.labels is None else _selector(member.labels)


def _no_child(parent: _Entry, child: _Entry | None, entries: Mapping[str, _Entry]) -> str:
    """Return why a HyperNode cannot be a member of another, or an empty string."""
    if child is None:
        return "is not a HyperNode of this cluster"
    if child.tier is None:
        return "is a HyperNode whose tier cannot be read"
    if child is parent or _reaches(child, parent.name, entries):
        return "is or contains this HyperNode: members must not form a cycle"
    if parent.tier is None or child.tier >= parent.tier:
        return f"has tier {child.tier}, which is not below tier {parent.tier}"
    if child.parent and child.parent != parent.name:
        return f"is already a member of {child.parent}"
    return ""


def _reaches(start: _Entry, goal: str, entries: Mapping[str, _Entry]) -> bool:
    """Return whether HyperNode `goal` is a direct or indirect member of `start`."""
    seen, todo = {start.name}, [start]
    while todo:
        for member in todo.pop().members:
            if member.type is not MemberType.HYPER_NODE or member.name in seen:
                continue
            if member.name == goal:
                return True
            seen.add(member.name)
            if member.name in entries:
                todo.append(entries[member.name])
    return False


def _assign_nodes(usable: Iterable[_Entry], nodes: NodeIndex) -> None:
    """Assign each node to the lowest-tier HyperNode that lists it; ties are broken by name."""
    by_name = {entry.name: entry for entry in usable}
    owner: dict[str, str] = {}
    ancestors: dict[str, set[str]] = {}
    for entry in sorted(by_name.values(), key=lambda e: (e.tier or 0, e.name)):
        for number, member in enumerate(entry.members):
            if member.type is not MemberType.NODE:
                continue
            selector = _member_selector(member)
            if selector is not None:
                names: Iterable[str] = nodes.selected_nodes(selector)
            elif member.name in nodes:
                names = (member.name,)
            else:
                entry.remark(number, member.name, "is not a node of this cluster")
                continue
            lost: dict[str, list[str]] = {}
            for name in sorted(names):
                holder = owner.setdefault(name, entry.name)
                if holder != entry.name and entry.name not in _ancestors(
                    holder, by_name, ancestors
                ):
                    lost.setdefault(holder, []).append(name)
            for holder, lost_names in sorted(lost.items()):
                shown = ", ".join(lost_names[:_SHOWN])
                if len(lost_names) > _SHOWN:
                    shown += f" and {len(lost_names) - _SHOWN} more"
                entry.remark(
                    number,
                    shown,
                    f"is already a member of {holder}, and this membership is ignored",
                )
    for name, holder in owner.items():
        by_name[holder].nodes.append(name)


def _ancestors(name: str, by_name: Mapping[str, _Entry], known: dict[str, set[str]]) -> set[str]:
    if name not in known:
        found: set[str] = set()
        at = by_name[name].parent
        while at:
            found.add(at)
            at = by_name[at].parent
        known[name] = found
    return known[name]


# --- writing --------------------------------------------------------------------------------------


def topology_spec(gang: Gang) -> dict[str, Any]:
    """Return the PodGroup `spec` fields for network topology and subgroups."""
    policies: list[dict[str, Any]] = []
    for rule in gang.sub_groups:
        selector = rule.selector
        policies.append(
            {
                "name": rule.name,
                "subGroupSize": rule.size,
                "minSubGroups": rule.min_groups,
                "matchLabelKeys": list(rule.keys),
                **({} if selector is None else {"labelSelector": label_selector_fields(selector)}),
                **_topology_fields(rule.topology),
            }
        )
    return {**_topology_fields(gang.topology), **({"subGroupPolicy": policies} if policies else {})}


def hypernode_spec(hypernode: HyperNode, topology: Topology) -> dict[str, Any]:
    """Return the `spec` of a HyperNode; it lists all members by name."""
    children = topology.members.get(hypernode.name, ())
    members = [*(("HyperNode", name) for name in children), *(("Node", n) for n in hypernode.nodes)]
    return {
        "tier": hypernode.tier,
        **({"tierName": hypernode.tier_name} if hypernode.tier_name else {}),
        "members": [
            {"type": kind, "selector": {"exactMatch": {"name": name}}} for kind, name in members
        ],
    }


def _topology_fields(request: TopologyRequest | None) -> dict[str, Any]:
    if request is None:
        return {}
    tier, tier_name = request.highest_tier, request.highest_tier_name
    limit = {} if tier is None else {"highestTierAllowed": tier}
    named = {"highestTierName": tier_name} if tier_name else {}
    return {"networkTopology": {"mode": request.mode.value, **limit, **named}}
