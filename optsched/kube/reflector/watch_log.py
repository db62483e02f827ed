"""Log lines about watches that fail and recover, each once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from optsched.kube.client.errors import Gone

if TYPE_CHECKING:
    from collections.abc import Hashable

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError
    from optsched.kube.runtime.outage import Outage

log = logging.getLogger(__name__)


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
