"""One warning per outage: an unavailable API server fails every watch, lease and write."""

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


class WatchLog:
    """Which watches of a process are broken; a `key` names one of them."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._broken: set[Hashable] = set()

    def record_success(self, key: Hashable, kind: Kind) -> None:
        """Record that a watch works; its recovery is logged."""
        self._outage.record_success(key)
        if key in self._broken:
            self._broken.discard(key)
            log.info("%s: followed again", kind.plural)

    def record_failure(self, key: Hashable, kind: Kind, error: KubeError) -> bool:
        """Log the first failure of a watch; returns whether this is it.

        While the API server is away only the first failure of the whole process is logged.
        """
        if not self._outage.record_failure(key, error) or key in self._broken:
            return False
        self._broken.add(key)
        # A resource version that expired is no fault: the kind is listed again.
        level = logging.INFO if isinstance(error, Gone) else logging.WARNING
        log.log(level, "%s: can not be followed: %s", _name(kind), error)
        return True


def _name(kind: Kind) -> str:
    return f"{kind.plural} of {kind.api_version}" if kind.group else kind.plural
