"""Types for decoded objects, for pages of lists, and for the selectors of list requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import POD
from optsched.api.kinds import Ref as Ref

if TYPE_CHECKING:
    from collections.abc import Sequence


Raw: TypeAlias = "dict[str, Any]"
"""A Kubernetes object as decoded JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list of objects.

    `resource_version` is the version of the whole list: a watch that starts at this version misses
    no event. `token` is the continue token of the next page, or empty on the last page.
    """

    items: Sequence[Raw]
    resource_version: str
    token: str = ""


def pod_ref(task: str) -> Ref:
    """Return a reference to the pod of the task with the key `namespace/name`."""
    namespace, _, name = task.partition("/")
    return Ref(POD, namespace, name)


PAGE_SIZE: Final = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """Label and field selectors for objects of a kind; `namespace` is empty for all namespaces."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of a list request."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


EVERYTHING: Final = Selection()
