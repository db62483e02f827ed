"""Objects as JSON has them, and lists of them: pages and selections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import POD
from optsched.api.kinds import Ref as Ref

if TYPE_CHECKING:
    from collections.abc import Sequence


Raw: TypeAlias = "dict[str, Any]"
"""An object as JSON has it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    resource_version: of the whole list: a watch from there misses nothing.
    token: where the next part begins; empty with the last one.
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
    """Which objects of a kind; labels, fields: selectors. namespace: empty for all."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a request."""
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in asked.items() if value}


EVERYTHING: Final = Selection()
