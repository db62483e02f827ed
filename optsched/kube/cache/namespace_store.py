"""Labels and annotations of namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.formats.snapshots.object_index import NAMESPACE_LABEL
from optsched.kube.cache.parsed_store import store_or_drop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.kube.client.interfaces import Raw


class NamespaceStore:
    """Namespaces by name, also those known only from other objects.

    Attributes
    ----------
    labels
        As of the last `refresh`; the very same mapping until one changes.

    """

    def __init__(self) -> None:
        self.labels: Mapping[str, Mapping[str, str]] = {}
        self._raw: dict[str, Raw] = {}
        self._is_stale = True

    def apply(self, name: str, obj: Raw | None) -> None:
        """Store a state of a Namespace; None for a deleted one."""
        store_or_drop(self._raw, name, obj)
        self._is_stale = True

    def annotations(self, name: str) -> dict[str, str]:
        """Return the annotations of a namespace."""
        return _string_map(self._raw.get(name, {}), "annotations")

    def refresh(self, used: set[str]) -> bool:
        """Bring `labels` up to date; returns whether a namespace may have changed.

        used: namespaces of any objects.
        """
        names = used | self._raw.keys()
        if not self._is_stale and names == self.labels.keys():
            return False
        labels = {
            name: {**_string_map(self._raw.get(name, {}), "labels"), NAMESPACE_LABEL: name}
            for name in sorted(names)
        }
        if labels != self.labels:
            self.labels = labels
        self._is_stale = False
        return True


def _string_map(obj: Raw, field: str) -> dict[str, str]:
    """Return the labels or annotations of an object whose values are strings."""
    found = obj.get("metadata", {}).get(field)
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
