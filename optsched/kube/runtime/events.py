"""Core/v1 Events, which `kubectl describe` shows to users.

An object has one event for each reason. The event is written as soon as the reason applies. While
the reason applies, the event is updated after 1 minute, after 5 more minutes, and then every 30
minutes. An update changes the event's count and time. The event name is derived from the object and
the reason, so a restarted scheduler or another replica updates the same event. An event contains
the time at which its reason occurred, not the time of the write. Few requests about events run
concurrently, so events do not delay binds. If too many events wait to be written, the oldest of
these events are dropped.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import EVENT, Ref
from optsched.api.wellknown import FULL_MESSAGE
from optsched.kube.client.errors import AlreadyExists, NotFound
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.units import format_time
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.meta import EventType
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

COMPONENT: Final = "optsched"
REPEATS_S: Final = (60.0, 300.0, 1800.0)
MAX_WAITING: Final = 10_000
REMEMBERED: Final = 50_000
SWEEP_AT: Final = 1_000
"""Number of remembered events at which events about deleted objects are first forgotten."""

MAX_CONCURRENT: Final = 4
_NAME: Final = 200
"""Maximum length of the object name in an event name; an event name has at most 253 characters."""

_MESSAGE: Final = 1024
"""The API server's length limit for event messages (NoteLengthLimit in `validateV1EventSeries`)."""

_MAX_COUNT: Final = 2**31 - 1
"""The largest value of an event's `count`, which is a 32-bit integer."""

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[Ref, str, str, str]
"""The identity of an event: reference and UID of its object, reason, and code."""


@dataclass(frozen=True, slots=True)
class Note:
    """A report about an object, to be written as an event.

    Attributes
    ----------
    about, uid
        Reference to the object, and UID of the object.
    reason
        One word, which `kubectl get events` shows.
    code
        Distinguishes notes with the same reason; each code has a separate event.
    message
        One sentence for the user.
    is_last
        True if the note reports that the object has finished; such a note is written even after the
        object's deletion.
    at_ms
        Time of the occurrence in epoch milliseconds; 0 means the time of the call of
        `EventRecorder.note`.
    """

    about: Ref
    uid: str
    type: EventType
    reason: str
    message: str
    code: str = ""
    is_last: bool = False
    at_ms: int = 0

    @property
    def key(self) -> Key:
        """The identity of the note's event: notes with equal keys belong to the same event."""
        return (self.about, self.uid, self.reason, self.code)

    @property
    def ref(self) -> Ref:
        """Reference to the Event object of the note."""
        name = self.about.name[:_NAME].rstrip("-.")
        identity = "\n".join((self.about.kind.kind, self.uid, self.reason, self.code))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return Ref(EVENT, self.about.namespace or "default", f"{name}.{digest}")


@dataclass(frozen=True, slots=True)
class _Written:
    at_s: float
    times: int


class EventHistory:
    """Records when and how often each event was written; does no I/O and reads no clock."""

    def __init__(self, exists: Callable[[Ref, str], bool]) -> None:
        """`exists` returns whether an object with this UID still exists."""
        self._exists = exists
        self._written: dict[Key, _Written] = {}
        self._sweeps_at = SWEEP_AT

    def is_write_due(self, note: Note, now_s: float) -> bool:
        """Return whether an event must be written for a note at time `now_s`."""
        entry = self._written.get(note.key)
        if entry is None:
            return True
        pause_s = REPEATS_S[min(entry.times, len(REPEATS_S)) - 1]
        return now_s - entry.at_s >= pause_s

    def times(self, note: Note) -> int:
        """Return how often the event of a note has been written."""
        entry = self._written.get(note.key)
        return 0 if entry is None else entry.times

    def record_write(self, note: Note, now_s: float, times: int) -> None:
        """Record that the event of a note was written at `now_s`, for the `times`-th time."""
        self._written[note.key] = _Written(now_s, times)
        if len(self._written) >= self._sweeps_at:
            for key in [key for key in self._written if not self._exists(key[0], key[1])]:
                del self._written[key]
            for key in list(self._written)[: max(0, len(self._written) - REMEMBERED)]:
                del self._written[key]
            self._sweeps_at = max(SWEEP_AT, 2 * len(self._written))


@dataclass(frozen=True, slots=True)
class _DatedNote:
    """An event note with the times of its first and latest occurrence."""

    note: Note
    first_ms: int
    last_ms: int


class EventRecorder:
    """Write queued notes as Events while `queue.run` is active.

    `queue` holds the event notes that wait to be written.
    """

    def __init__(
        self,
        api: Client,
        clock: Clock,
        timing: Timing,
        may_write: Callable[[Note], bool] = lambda _: True,
        exists: Callable[[Ref, str], bool] = lambda _about, _uid: True,
    ) -> None:
        """`may_write` is called before each request and returns whether a note may be written.

        `exists` returns whether an object with this UID still exists; events about deleted objects
        are forgotten.
        """
        self._api = api
        self._clock = clock
        self._may_write = may_write
        self._history = EventHistory(exists)
        self.queue: WriteQueue[Key, _DatedNote] = WriteQueue(
            lambda _, dated: self._write(dated),
            timing,
            max_concurrent=MAX_CONCURRENT,
            max_waiting=MAX_WAITING,
            lane_of=lambda key: key[0].namespace,
            on_failure=lambda key, error: log.debug(
                "event %s of %s not written: %s", key[2], key[0], error
            ),
        )

    def note(self, note: Note) -> None:
        """Queue an event note for writing, unless the same event was written recently."""
        if self._history.is_write_due(note, self._clock.monotonic()):
            now_ms, waits = note.at_ms or self._clock.now_ms(), self.queue.pending_value(note.key)
            first_ms = now_ms if waits is None else waits.first_ms
            self.queue.enqueue(note.key, _DatedNote(note, first_ms, now_ms))

    async def _write(self, dated: _DatedNote) -> None:
        note = dated.note
        # The event of a queued note may have been written in the meantime.
        is_due = self._history.is_write_due(note, self._clock.monotonic())
        if not is_due or not self._may_write(note):
            return
        times = self._history.times(note)
        if times:
            try:
                times = await self._repeat(dated, times)
            except NotFound:
                # API servers delete events after an hour by default.
                times = 0
        if not times:
            event = build_event(note, format_time(dated.first_ms), format_time(dated.last_ms))
            try:
                await self._api.create(note.ref, event)
                times = 1
            except AlreadyExists:
                # Another process has written the same event, so the count continues from that
                # event's count. A user may have forged the event, so the other fields are
                # overwritten.
                known = await self._api.read(note.ref)
                own = {name: event[name] for name in ("involvedObject", "type", "reason")}
                count = known.get("count")
                if not isinstance(count, int) or not 0 < count < _MAX_COUNT:
                    count = 1
                times = await self._repeat(dated, count, own)
        self._history.record_write(note, self._clock.monotonic(), times)

    async def _repeat(self, dated: _DatedNote, times: int, fields: Raw | None = None) -> int:
        """Increment an event's count, overwrite the given fields, and return the new count."""
        message, metadata = _limit_message(dated.note.message)
        count = min(times + 1, _MAX_COUNT)
        body: Raw = {
            "lastTimestamp": format_time(dated.last_ms),
            "message": message,
            "count": count,
        }
        if metadata:
            body["metadata"] = metadata
        await self._api.patch(dated.note.ref, {**body, **(fields or {})})
        return count


def _limit_message(message: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Truncate a long event message; return it, and metadata that holds the full text."""
    message = printable(message)
    if len(message) <= _MESSAGE:
        return message, {}
    return f"{message[: _MESSAGE - 1]}…", {"annotations": {FULL_MESSAGE: message}}


def build_event(note: Note, first: str, last: str) -> Raw:
    """Build a note's Event; `first` and `last` are timestamps of its first and last occurrence."""
    about, ref = note.about, note.ref
    message, metadata = _limit_message(note.message)
    involved: dict[str, Any] = {
        "apiVersion": about.kind.api_version,
        "kind": about.kind.kind,
        "namespace": about.namespace,
        "name": about.name,
        "uid": note.uid,
    }
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": ref.name, "namespace": ref.namespace, **metadata},
        "involvedObject": {name: value for name, value in involved.items() if value},
        "type": note.type.value,
        "reason": note.reason,
        "message": message,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": first,
        "lastTimestamp": last,
        "count": 1,
    }
