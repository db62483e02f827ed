"""One warning per outage: an unavailable API server fails every watch, lease and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.kube.client.errors import ServerFault, TooMany, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from optsched.kube.client.errors import KubeError


class Outage:
    """The operations of a process that fail because the API server is unavailable."""

    def __init__(self) -> None:
        self._failing: set[Hashable] = set()

    @property
    def is_active(self) -> bool:
        """Whether any operation still fails because of the server."""
        return bool(self._failing)

    def record_failure(self, about: Hashable, error: KubeError) -> bool:
        """Record a failure; returns whether to report it.

        Errors that are no outage are always reported; an outage only with its first failure.
        """
        if not isinstance(error, Unreachable | ServerFault | TooMany):
            self.record_success(about)
            return True
        is_new = not self._failing
        self._failing.add(about)
        return is_new

    def record_success(self, about: Hashable) -> None:
        """Record that an operation succeeded, or was answered."""
        self._failing.discard(about)

    def retain(self, is_tried: Callable[[Hashable], bool]) -> None:
        """Forget operations that are no longer attempted."""
        self._failing = set(filter(is_tried, self._failing))
