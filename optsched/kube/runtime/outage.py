"""Log one warning for each outage of an API server, although every watch and write fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from optsched.kube.client.errors import Gone, ServerFault, TooMany, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError


log = logging.getLogger(__name__)


class Outage:
    """The operations of a process that fail because the API server is unavailable.

    Also records which watches are broken; each watch has a key.
    """

    def __init__(self) -> None:
        self._failing: set[Hashable] = set()
        self._broken_watches: set[Hashable] = set()

    @property
    def is_active(self) -> bool:
        """Whether any operation fails because the API server is unavailable."""
        return bool(self._failing)

    def record_failure(self, about: Hashable, error: KubeError) -> bool:
        """Record a failed operation and return whether to report the failure.

        An outage is reported only with its first failure. Errors that do not belong to an outage
        are always reported.
        """
        if isinstance(error, Gone):
            # The kind is listed next, which may fail while a restarted server initializes its
            # storage. That failure belongs to the same outage.
            return True
        if not isinstance(error, Unreachable | ServerFault | TooMany):
            self.record_success(about)
            return True
        is_new = not self._failing
        self._failing.add(about)
        return is_new

    def record_success(self, about: Hashable) -> None:
        """Record that the server responded to an operation."""
        self._failing.discard(about)

    def retain(self, is_tried: Callable[[Hashable], bool]) -> None:
        """Remove the failures of operations that are no longer attempted."""
        self._failing = set(filter(is_tried, self._failing))

    def record_watch_success(self, key: Hashable, kind: Kind, *, was_absent: bool = False) -> None:
        """Record that a watch works, and log the recovery of a broken or absent watch."""
        self.record_success(key)
        if was_absent or key in self._broken_watches:
            self._broken_watches.discard(key)
            log.info("%s: followed again", kind.plural)

    def record_watch_failure(self, key: Hashable, kind: Kind, error: KubeError) -> bool:
        """Log the first failure of a watch, and return whether the failure was logged.

        During an outage only the first failure of the whole process is logged.
        """
        if not self.record_failure(key, error) or key in self._broken_watches:
            return False
        self._broken_watches.add(key)
        # An expired resource version is not an error, because the kind is then listed again.
        level = logging.INFO if isinstance(error, Gone) else logging.WARNING
        name = f"{kind.plural} of {kind.api_version}" if kind.group else kind.plural
        log.log(level, "%s: cannot be followed: %s", name, error)
        return True
