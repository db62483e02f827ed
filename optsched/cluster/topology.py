"""The network of a cluster as trees of HyperNodes, and the topology requests of gangs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from optsched.api.wellknown import HYPERCLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.selectors import LabelSelector


class TopologyMode(StrEnum):
    """Whether a topology request is a constraint or a preference."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """A gang's request that all its tasks run in one network domain.

    Attributes
    ----------
    highest_tier, highest_tier_name
        The highest allowed tier of the HyperNode that contains all tasks, by number or by name. If
        `highest_tier` and `highest_tier_name` are not set, any tier is allowed.
    label
        A node label; the nodes with the same value of this label form one domain. If `label` is
        empty, the domains are HyperNodes.
    """

    mode: TopologyMode = TopologyMode.HARD
    highest_tier: int | None = None
    highest_tier_name: str = ""
    label: str = ""

    @property
    def is_hard(self) -> bool:
        """Whether the request is a constraint that can exclude nodes."""
        return self.mode is TopologyMode.HARD and self.highest_tier_name != HYPERCLUSTER

    def __str__(self) -> str:
        if self.label:
            return f"one value of {self.label}"
        if self.highest_tier_name:
            return f"one HyperNode of tier {self.highest_tier_name} or below"
        if self.highest_tier is not None:
            return f"one HyperNode of tier {self.highest_tier} or below"
        return "one HyperNode"


@dataclass(frozen=True, slots=True)
class SubGroupRule:
    """A rule that divides tasks of a gang into subgroups; the tasks of a subgroup start together.

    Attributes
    ----------
    size
        Minimum number of tasks of a subgroup that must run together.
    min_groups
        Minimum number of subgroups that must run for the gang to count as started.
    selector
        Selects the tasks that belong to subgroups; None selects all tasks with the labels `keys`.
    keys
        Labels of tasks; tasks with the same values form one subgroup. A task that lacks a label in
        `keys` belongs to no subgroup.
    """

    name: str
    size: int = 1
    min_groups: int = 0
    selector: LabelSelector | None = None
    keys: tuple[str, ...] = ()
    topology: TopologyRequest | None = None

    def group_of(self, labels: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the label values that identify a task's subgroup; None if it is in no subgroup."""
        if self.selector is None and not self.keys:
            return None
        if self.selector is not None and not self.selector.matches(labels):
            return None
        values = tuple(labels.get(key, "") for key in self.keys)
        return values if all(values) else None


SubGroup: TypeAlias = tuple[int, tuple[str, ...]]
"""A subgroup of a gang: the index of its rule, and the label values of its tasks."""


def sub_group_of(rules: tuple[SubGroupRule, ...], labels: Mapping[str, str]) -> SubGroup | None:
    """Return the index of the first rule that matches a task, and the task's subgroup, or None."""
    for number, rule in enumerate(rules):
        group = rule.group_of(labels)
        if group is not None:
            return number, group
    return None


@dataclass(frozen=True, slots=True)
class HyperNode:
    """A set of nodes that are close to each other in the network.

    Attributes
    ----------
    tier
        Tier of the HyperNode, which is lower than the tier of `parent`. The lower the tier, the
        closer together are the nodes.
    parent
        Name of the HyperNode that contains this HyperNode; empty at the top level.
    nodes
        Sorted names of the nodes that belong to this HyperNode but to none of its descendants.
    """

    name: str
    tier: int
    tier_name: str = ""
    parent: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """All HyperNodes of a cluster; a node is a direct member of at most one HyperNode.

    Attributes
    ----------
    hypernodes
        HyperNodes, sorted by name.
    problems
        Messages about invalid fields and members, keyed by HyperNode name; such fields and members
        are ignored. HyperNodes with an invalid tier are absent from `hypernodes`.
    """

    hypernodes: tuple[HyperNode, ...] = ()
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for before, after in pairwise(self.hypernodes):
            if before.name >= after.name:
                raise ValueError(f"HyperNodes: {after.name!r} out of order; sort them by name")

    @cached_property
    def by_name(self) -> Mapping[str, HyperNode]:
        """HyperNodes by name."""
        return {h.name: h for h in self.hypernodes}

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """Maps each HyperNode to the names of its child HyperNodes; "" stands for the top level."""
        found: dict[str, list[str]] = {}
        for h in self.hypernodes:
            found.setdefault(h.parent, []).append(h.name)
        return {name: tuple(below) for name, below in found.items()}

    @cached_property
    def covered(self) -> Mapping[str, frozenset[str]]:
        """Maps each HyperNode to the names of the nodes in it and in its descendants."""
        found: dict[str, set[str]] = {h.name: set(h.nodes) for h in self.hypernodes}
        for h in sorted(self.hypernodes, key=lambda h: h.tier):
            if h.parent:
                found[h.parent] |= found[h.name]
        return {name: frozenset(nodes) for name, nodes in found.items()}

    @cached_property
    def top_tier(self) -> int:
        """The tier of the whole cluster: one above the highest tier of a HyperNode."""
        return max((h.tier for h in self.hypernodes), default=0) + 1


NO_TOPOLOGY = Topology()
"""A cluster without HyperNodes."""
