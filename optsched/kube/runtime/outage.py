"""One warning for one fault: an API server that is away fails every watch, lease and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.kube.client.errors import ServerFault, TooMany, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from optsched.kube.client.errors import KubeError


class Outage:
    """What fails in a process because the API server is away, faulty or busy."""

    def __init__(self) -> None:
        self._failing: set[Hashable] = set()

    @property
    def is_active(self) -> bool:
        """Whether anything still fails because of the server."""
        return bool(self._failing)

    def record_failure(self, about: Hashable, error: KubeError) -> bool:
        """Note a failure; whether its fault has not been reported yet.

        Errors that are no fault of the server as a whole are new each time.
        """
        if not isinstance(error, Unreachable | ServerFault | TooMany):
            self.record_success(about)
            return True
        is_new = not self._failing
        self._failing.add(about)
        return is_new

    def record_success(self, about: Hashable) -> None:
        """Note that something works, or is answered."""
        self._failing.discard(about)

    def retain(self, is_tried: Callable[[Hashable], bool]) -> None:
        """Forget what is no longer tried."""
        self._failing = set(filter(is_tried, self._failing))
