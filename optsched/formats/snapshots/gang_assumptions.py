"""Changes of gangs that this process has made and the API server has not confirmed yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from optsched.api.wellknown import MOVES
from optsched.cluster.snapshot import GangPhase
from optsched.formats.codec.pod_groups import is_left_over, last_shuffle_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.podgroup import PodGroup
    from optsched.cluster.snapshot import Gang

MOST_SHUFFLES: Final = 64
"""Maximum number of plugins whose shuffle times are kept, as tenants may add annotations."""


def uid_of(gang: Gang) -> str:
    """Return the UID of a gang's PodGroup, or of the pod if the gang is a bare pod."""
    return gang.tasks[0].uid if gang.is_implicit else gang.uid


@dataclass(frozen=True, slots=True)
class GangAssumptions:
    """Assumed phases of PodGroups, and assumed annotations of move times.

    Attributes
    ----------
    moves
        (UID, assumed annotation that records when plugins moved pods), keyed by gang.
    enqueued
        UIDs of PodGroups that are assumed to be enqueued, keyed by gang.

    """

    moves: dict[str, tuple[str, str]] = field(default_factory=dict)
    enqueued: dict[str, str] = field(default_factory=dict)

    def apply_to(self, gang: Gang, group: PodGroup | None) -> Gang:
        """Apply the assumptions to a gang; drop those that are confirmed or contradicted.

        A new gang with the same key has a new UID, which contradicts all assumptions. A PodGroup
        whose pods are deleted is never enqueued, so an assumption about its phase is dropped too.
        """
        if gang.key in self.moves:
            uid, text = self.moves[gang.key]
            if gang.annotations.get(MOVES, "") == text or uid_of(gang) != uid:
                del self.moves[gang.key]
            else:
                others = {key: value for key, value in gang.annotations.items() if key != MOVES}
                gang = replace(gang, annotations={**others, MOVES: text} if text else others)
        if gang.key in self.enqueued:
            is_confirmed = gang.phase is not GangPhase.PENDING
            is_same = gang.uid == self.enqueued[gang.key]
            if is_confirmed or not is_same or (group and is_left_over(gang.tasks, group)):
                del self.enqueued[gang.key]
            else:
                gang = replace(gang, phase=GangPhase.INQUEUE)
        return gang


@dataclass(frozen=True, slots=True)
class ShuffleTimes:
    """The times at which plugins last moved pods to better nodes, in ms, keyed by plugin.

    Attributes
    ----------
    own
        The times recorded by this process.
    written
        The times recorded in PodGroup annotations.

    """

    own: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)

    def add_annotations(self, annotations: Mapping[str, str]) -> None:
        """Add the move times in a PodGroup's annotations to `written`; keep the latest ones."""
        times = self.written
        for plugin, at_ms in last_shuffle_ms([annotations]).items():
            times[plugin] = max(times.get(plugin, 0), at_ms)
            if len(times) > MOST_SHUFFLES:
                del times[min(times, key=lambda name: times[name])]

    def last_ms(self, taken_ms: int | None) -> dict[str, int]:
        """Return when each plugin last moved pods to better nodes.

        `taken_ms` is the current time in ms since 1970, or None. Times after `taken_ms` are
        ignored, because a wrong clock of another process would otherwise block the plugin until
        that time.
        """
        found: dict[str, int] = {}
        for times in (self.written, self.own):
            for plugin, at_ms in times.items():
                if taken_ms is None or at_ms <= taken_ms:
                    found[plugin] = max(found.get(plugin, 0), at_ms)
        return found
