"""Objects of a cluster by kind and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import POD, find_kind
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.policy.policy import Policy
    from optsched.session.session import SessionContext

    Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Means:
    """The policy, the dependencies of a session, and whose pods are counted."""

    policy: Policy
    context: SessionContext
    options: DecodeOptions


def name_of(obj: Manifest) -> tuple[str, str]:
    """The identity of an object: kind and key."""
    return f"{obj.get('apiVersion')} {obj.get('kind')}", key_of(obj)


def key_of(obj: Manifest) -> str:
    """`namespace/name`, or the name alone outside of namespaces."""
    kind = find_kind(str(obj.get("apiVersion")), str(obj.get("kind")))
    meta = obj.get("metadata") or {}
    name = str(meta.get("name", ""))
    if kind is not None and not kind.namespaced:
        return name
    return f"{meta.get('namespace') or DEFAULT_NAMESPACE}/{name}"


def is_pod_of(obj: Manifest, keys: Collection[str]) -> bool:
    """Whether an object is a pod with one of these keys."""
    return obj.get("kind") == POD.kind and key_of(obj) in keys
