"""Core/v1 Events, which `kubectl describe` shows to users.

Each pair of object and reason has one event. The event is written when the reason first holds.
While the reason holds, the event is updated after 1 minute, after 5 more minutes, and then every 30
minutes. An update changes the count and the time. The name of an event is derived from its object
and reason, so that a restarted scheduler or another replica continues the same event. An event
records when its reason occurred, even if the event is written later. Events use few concurrent
requests, so that events do not delay binds. If too many events wait, the oldest events are dropped.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import EVENT
from optsched.api.wellknown import FULL_MESSAGE
from optsched.kube.client.errors import AlreadyExists, NotFound
from optsched.kube.client.listing import Ref
from optsched.kube.runtime.write_queue import WriteQueue
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
"""Number of remembered events at which the events of deleted objects are first removed."""

MAX_CONCURRENT: Final = 4
_NAME: Final = 200
"""Maximum length of the object's name within an event name, which has at most 253 characters."""

_MESSAGE: Final = 1024
"""Length limit of the API server for event messages (`validateV1EventSeries`, NoteLengthLimit)."""


_MAX_COUNT: Final = 2**31 - 1
"""The largest count of an event, a 32-bit integer."""

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[Ref, str, str, str]
"""The identity of an event: object, UID, reason and code."""


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
        One sentence for users.
    is_last
        True if the note reports the end of the object, and is written even after its deletion.
    at_ms
        Time of the occurrence in ms; 0 means the time of the call of `EventRecorder.note`.
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
        """The identity of the event: notes with the same key belong to the same event."""
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
    """The time and count of each event's last write; does no I/O and reads no clock."""

    def __init__(self, exists: Callable[[Ref, str], bool]) -> None:
        """`exists` returns whether an object with this UID still exists."""
        self._exists = exists
        self._written: dict[Key, _Written] = {}
        self._sweeps_at = SWEEP_AT

    def is_write_due(self, note: Note, now_s: float) -> bool:
        """Return whether a note has to be written at time `now_s`."""
        entry = self._written.get(note.key)
        if entry is None:
            return True
        pause_s = REPEATS_S[min(entry.times, len(REPEATS_S)) - 1]
        return now_s - entry.at_s >= pause_s

    def times(self, note: Note) -> int:
        """Return the number of times a note has been written."""
        entry = self._written.get(note.key)
        return 0 if entry is None else entry.times

    def record_write(self, note: Note, now_s: float, times: int) -> None:
        """Record that a note was written at time `now_s`, and `times` times in total."""
        self._written[note.key] = _Written(now_s, times)
        if len(self._written) >= self._sweeps_at:
            for key in [key for key in self._written if not self._exists(key[0], key[1])]:
                del self._written[key]
            for key in list(self._written)[: max(0, len(self._written) - REMEMBERED)]:
                del self._written[key]
            self._sweeps_at = max(SWEEP_AT, 2 * len(self._written))


@dataclass(frozen=True, slots=True)
class _DatedNote:
    """A note with the times of its first and last occurrence."""

    note: Note
    first_ms: int
    last_ms: int


class EventRecorder:
    """A recorder that writes notes as Events while `queue.run` is active.

    `queue` holds the notes that wait to be written.
    """

    def __init__(
        self,
        api: Client,
        clock: Clock,
        timing: Timing,
        may_write: Callable[[Note], bool] = lambda _: True,
        exists: Callable[[Ref, str], bool] = lambda _about, _uid: True,
    ) -> None:
        """`may_write` returns whether a note may still be written; called before each request.

        `exists` returns whether an object with this UID exists; events of deleted objects are
        removed from the history.
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
        """Queue a note for writing, unless the same note was written recently."""
        if self._history.is_write_due(note, self._clock.monotonic()):
            now_ms, waits = note.at_ms or self._clock.now_ms(), self.queue.pending_value(note.key)
            first_ms = now_ms if waits is None else waits.first_ms
            self.queue.enqueue(note.key, _DatedNote(note, first_ms, now_ms))

    async def _write(self, dated: _DatedNote) -> None:
        note = dated.note
        # The same note may have been written since this note was queued.
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
                # Another process has written the same event, so the count of that process
                # continues. A user may have forged the event, so other fields are written again.
                known = await self._api.read(note.ref)
                own = {name: event[name] for name in ("involvedObject", "type", "reason")}
                count = known.get("count")
                if not isinstance(count, int) or not 0 < count < _MAX_COUNT:
                    count = 1
                times = await self._repeat(dated, count, own)
        self._history.record_write(note, self._clock.monotonic(), times)

    async def _repeat(self, dated: _DatedNote, times: int, fields: Raw | None = None) -> int:
        """Increase the count of an event, write other fields, and return the increased count."""
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
    """Return a message of limited length, and metadata that hold a longer message in full."""
    message = printable(message)
    if len(message) <= _MESSAGE:
        return message, {}
    return f"{message[: _MESSAGE - 1]}…", {"annotations": {FULL_MESSAGE: message}}


def build_event(note: Note, first: str, last: str) -> Raw:
    """Return the Event of a note; `first`, `last` are times of occurrence in the API's format."""
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
