"""Types for decoded objects, list pages, and the selectors of list requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import POD, Ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.api.kinds import Kind

Raw: TypeAlias = "dict[str, Any]"
"""A Kubernetes object as decoded JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list response.

    `resource_version` is the version of the whole list: a watch that starts at this version misses
    no event. `token` is the continue token for the next page; empty on the last page.
    """

    items: Sequence[Raw]
    resource_version: str
    token: str = ""


def ref_by_key(kind: Kind, key: str) -> Ref:
    """Return a reference to the object with the key `namespace/name` or `name` (`Ref.key`)."""
    namespace, _, name = key.rpartition("/")
    return Ref(kind, namespace, name)


def pod_ref(task: str) -> Ref:
    """Return a reference to the pod of the task with the key `namespace/name`."""
    return ref_by_key(POD, task)


PAGE_SIZE: Final = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """Label and field selectors of a list request; an empty `namespace` selects all namespaces."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of a list request."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


EVERYTHING: Final = Selection()
