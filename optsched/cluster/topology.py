"""The network of a cluster as a tree of HyperNodes, and the topology requests of gangs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from optsched.api.wellknown import HYPERCLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.selectors import LabelSelector


class TopologyMode(StrEnum):
    """Whether a limit on the network is a rule or a wish."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """The largest distance of tasks in the network.

    Attributes
    ----------
    highest_tier, highest_tier_name
        The highest tier that they may cross, by number or by name; neither: any one HyperNode.
    label
        A node label whose values replace HyperNodes; empty for HyperNodes.
    """

    mode: TopologyMode = TopologyMode.HARD
    highest_tier: int | None = None
    highest_tier_name: str = ""
    label: str = ""

    @property
    def is_hard(self) -> bool:
        """Whether it is a rule that keeps tasks from any node."""
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
    """Forms smaller groups inside a gang; each of them starts whole.

    Attributes
    ----------
    size
        Tasks of a group that must run together.
    min_groups
        Groups that must run before the gang counts as started.
    selector
        Tasks that match; None leaves that to `keys`.
    keys
        Labels whose values distinguish the groups; a task without one of them belongs to none.
    """

    name: str
    size: int = 1
    min_groups: int = 0
    selector: LabelSelector | None = None
    keys: tuple[str, ...] = ()
    topology: TopologyRequest | None = None

    def group_of(self, labels: Mapping[str, str]) -> tuple[str, ...] | None:
        """The group of a task with these labels, by the values of `keys`; None for no group."""
        if self.selector is None and not self.keys:
            return None
        if self.selector is not None and not self.selector.matches(labels):
            return None
        values = tuple(labels.get(key, "") for key in self.keys)
        return values if all(values) else None


def sub_group_of(
    rules: tuple[SubGroupRule, ...], labels: Mapping[str, str]
) -> tuple[int, tuple[str, ...]] | None:
    """The first rule that means a task, and the group it puts it in; None when none does."""
    for number, rule in enumerate(rules):
        group = rule.group_of(labels)
        if group is not None:
            return number, group
    return None


@dataclass(frozen=True, slots=True)
class HyperNode:
    """Nodes that are close to each other: a leaf or an inner node of the tree.

    Attributes
    ----------
    tier
        A lower one is closer together; that of `parent` is higher.
    parent
        Name of the HyperNode that this one is a member of; empty at the top.
    nodes
        In name order: nodes that are members of this HyperNode and of none below it.
    """

    name: str
    tier: int
    tier_name: str = ""
    parent: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """All HyperNodes; a node is directly in one of them at most.

    Attributes
    ----------
    hypernodes
        In name order.
    problems
        Problems by HyperNode, which therefore do not count; those whose tier can not be read are
        not among `hypernodes`.
    """

    hypernodes: tuple[HyperNode, ...] = ()
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for before, after in pairwise(self.hypernodes):
            if before.name >= after.name:
                raise ValueError(f"HyperNodes: {after.name!r} out of order; names must ascend")

    @cached_property
    def by_name(self) -> Mapping[str, HyperNode]:
        """HyperNodes by name."""
        return {h.name: h for h in self.hypernodes}

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the HyperNodes directly below each one that has any; "" for those at the top."""
        found: dict[str, list[str]] = {}
        for h in self.hypernodes:
            found.setdefault(h.parent, []).append(h.name)
        return {name: tuple(below) for name, below in found.items()}

    @cached_property
    def covered(self) -> Mapping[str, frozenset[str]]:
        """The nodes in each HyperNode, those of HyperNodes below it included."""
        found: dict[str, set[str]] = {h.name: set(h.nodes) for h in self.hypernodes}
        for h in sorted(self.hypernodes, key=lambda h: h.tier):
            if h.parent:
                found[h.parent] |= found[h.name]
        return {name: frozenset(nodes) for name, nodes in found.items()}

    @cached_property
    def top_tier(self) -> int:
        """The tier of the whole cluster: one above the highest there is."""
        return max((h.tier for h in self.hypernodes), default=0) + 1


NO_TOPOLOGY = Topology()
"""A cluster without HyperNodes."""
