"""HyperNode: nodes close to each other in the network, read from `topology.volcano.sh/v1alpha1`.

Source of names and limits: Volcano's topology/v1alpha1/hypernode_types.go and its webhook
(pkg/webhooks/admission/hypernodes). What a HyperNode means beside others (parents, cycles, nodes
that two of them list) is told where the tree is put together, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.api.fields import Fields
from optsched.api.meta import parse_meta
from optsched.api.selectors import LabelSelector, read_selector
from optsched.api.topology_schemas import HYPER_NODE_SCHEMA
from optsched.units.patterns import PatternError, parse_pattern

if TYPE_CHECKING:
    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError

_NO_WAY = "says nothing: write exactMatch, regexMatch or labelMatch"
_MANY_WAYS = "says more than one of exactMatch, regexMatch and labelMatch: keep one"
_BY_NAME = "is for nodes only: a HyperNode is a member by exactMatch"
_NO_MEMBERS = "is missing: list at least one member"


class MemberType(StrEnum):
    """What a member of a HyperNode is."""

    NODE = "Node"
    HYPER_NODE = "HyperNode"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a HyperNode's list; only one of name, pattern and labels is there."""

    type: MemberType
    name: str = ""
    pattern: str = ""
    labels: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class HyperNodeCondition:
    """One fact about a HyperNode. transition_ms: milliseconds since 1970, or None."""

    type: str
    status: str
    generation: int = 0
    transition_ms: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class HyperNode:
    """Nodes that are close to each other in the network.

    tier: None where it cannot be read; such a HyperNode says nothing. num_nodes, conditions: as
    last written. errors: fields that cannot be read; a member that cannot be read is left out.
    """

    meta: ObjectMeta
    tier: int | None
    tier_name: str = ""
    members: tuple[Member, ...] = ()
    num_nodes: int = 0
    conditions: tuple[HyperNodeCondition, ...] = ()
    errors: tuple[FieldError, ...] = ()

    @property
    def name(self) -> str:
        """The HyperNode's name."""
        return self.meta.name


def parse_hypernode(obj: object) -> tuple[HyperNode | None, tuple[FieldError, ...]]:
    """The HyperNode in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name. With errors the HyperNode is returned all the same.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, HYPER_NODE_SCHEMA, "", errors)
    spec, status = whole.record("spec"), whole.record("status")
    if spec.raw("members") in (None, []):
        spec.reject("members", spec.raw("members"), _NO_MEMBERS)
    members = (_member(each) for each in spec.records("members"))
    found = HyperNode(
        meta=meta,
        tier=spec.optional_integer("tier"),
        tier_name=spec.text("tierName"),
        members=tuple(member for member in members if member is not None),
        num_nodes=status.integer("nodeCount"),
        conditions=tuple(_condition(each) for each in status.records("conditions")),
        errors=tuple(errors),
    )
    return found, found.errors


def _member(fields: Fields) -> Member | None:
    """A member; None, with the reason among the errors, for one that says nothing clear."""
    kind, selector = fields.text("type"), fields.record("selector")
    exact, regex = selector.optional_record("exactMatch"), selector.optional_record("regexMatch")
    labels = selector.optional_record("labelMatch")
    found = Member(
        type=MemberType(kind or MemberType.NODE),
        name=exact.text("name") if exact else "",
        pattern=_pattern(regex) if regex else "",
        labels=read_selector(labels) if labels else None,
    )
    ways = sum(way is not None for way in (exact, regex, labels))
    problem = _NO_WAY if not ways else _MANY_WAYS if ways > 1 else ""
    if kind == MemberType.HYPER_NODE and exact is None:
        problem = problem or _BY_NAME
    if problem:
        fields.reject("selector", fields.raw("selector"), problem)
    says_something = found.name or found.pattern or found.labels is not None
    return found if kind and says_something and not problem else None


def _pattern(regex: Fields) -> str:
    pattern = regex.text("pattern")
    try:
        parse_pattern(pattern)
    except PatternError as error:
        regex.reject("pattern", pattern, str(error))
        return ""
    return pattern


def _condition(fields: Fields) -> HyperNodeCondition:
    return HyperNodeCondition(
        type=fields.text("type"),
        status=fields.text("status"),
        generation=fields.integer("observedGeneration"),
        transition_ms=fields.time_ms("lastTransitionTime"),
        reason=fields.text("reason"),
        message=fields.text("message"),
    )
