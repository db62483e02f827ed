"""Types for objects in decoded JSON, and for pages and selections of their lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import POD
from optsched.api.kinds import Ref as Ref

if TYPE_CHECKING:
    from collections.abc import Sequence


Raw: TypeAlias = "dict[str, Any]"
"""An object as decoded JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list.

    resource_version: the version of the whole list; a watch from there misses no event.
    token: the continue token of the next page; empty on the last page.
    """

    items: Sequence[Raw]
    resource_version: str
    token: str = ""


def pod_ref(task: str) -> Ref:
    """Return the pod of a task, by its key `namespace/name`."""
    namespace, _, name = task.partition("/")
    return Ref(POD, namespace, name)


PAGE_SIZE: Final = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of objects of a kind. labels, fields: selectors. namespace: empty for all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of a list request."""
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in asked.items() if value}


EVERYTHING: Final = Selection()
