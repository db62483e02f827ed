"""Priority classes as a table from name to number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.priorityclass import PriorityClass

SYSTEM: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""Classes that every cluster has (k8s.io/kubernetes, pkg/apis/scheduling)."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """What the names of priority classes stand for.

    Attributes
    ----------
    values
        By name.
    default
        Where no class is named: the value of the global default class, else 0.

    """

    values: Mapping[str, int] = field(default_factory=lambda: SYSTEM)
    default: int = 0

    def value_of(self, name: str) -> int | None:
        """The value of a class, of the default for an empty name; None for a missing class."""
        return self.values.get(name) if name else self.default


def priorities(classes: Iterable[PriorityClass]) -> Priorities:
    """The table of some classes.

    Of several global defaults the smallest counts (upstream: `getDefaultPriorityClass`).
    """
    known = list(classes)
    defaults = [each.value for each in known if each.global_default]
    return Priorities(
        values={**SYSTEM, **{each.name: each.value for each in known}},
        default=min(defaults, default=0),
    )
