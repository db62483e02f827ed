"""Core/v1 Events: what users read under `kubectl describe`.

One event an object and reason: it is written when the reason first holds, and while it keeps
holding only its count and time are, after 1, 5 and then every 30 minutes. The name of an event
follows from its object and reason, so that a scheduler that was restarted, or another one, goes on
with the same event. It has the time at which its note was taken, however late it is written. Events
take few requests at a time, so that binds need not wait for them, nor they for binds; the oldest
are given up when too many wait.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from optsched.api.kinds import EVENT
from optsched.kube.client.errors import AlreadyExists, NotFound
from optsched.kube.client.interfaces import Ref
from optsched.kube.runtime.write_queue import WriteQueue
from optsched.units import format_time
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.events import EventType
    from optsched.kube.client.interfaces import Api, Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

COMPONENT: Final = "optsched"
REPEATS_S: Final = (60.0, 300.0, 1800.0)
MOST_WAITING: Final = 10_000
REMEMBERED: Final = 50_000
SWEPT_AT: Final = 1_000
"""Remembered events from which on those of objects that are gone are forgotten."""

AT_ONCE: Final = 4
_NAME: Final = 200
"""Characters of an object's name in the name of its event, which may have 253."""

_MESSAGE: Final = 1024
"""The most that the API server takes (`validateV1EventSeries`, NoteLengthLimit)."""


log = logging.getLogger(__name__)

Key: TypeAlias = tuple[Ref, str, str, str]
"""What tells events apart: object, uid, reason, code."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happens to an object.

    Attributes
    ----------
    about, uid
        The object.
    reason
        A word for `kubectl get events`.
    code
        What tells notes of the same reason apart; a note with another code is another event.
    message
        One sentence.
    is_last
        Whether it is about the end of the object, and so written although that may be gone.
    at_ms
        When it happened; 0 for the moment in which it is noted.

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
        """Notes with the same key are the same event."""
        return (self.about, self.uid, self.reason, self.code)

    @property
    def ref(self) -> Ref:
        """Its event."""
        name = self.about.name[:_NAME].rstrip("-.")
        told = "\n".join((self.about.kind.kind, self.uid, self.reason, self.code))
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        return Ref(EVENT, self.about.namespace or "default", f"{name}.{digest}")


@dataclass(frozen=True, slots=True)
class _Written:
    at_s: float
    times: int


class EventHistory:
    """What has been written when, of objects that are there; no I/O, no clock."""

    def __init__(self, exists: Callable[[Ref, str], bool]) -> None:
        """exists: whether the object of a uid still exists."""
        self._exists = exists
        self._written: dict[Key, _Written] = {}
        self._sweeps_at = SWEPT_AT

    def __len__(self) -> int:
        return len(self._written)

    def is_due(self, note: Note, now_s: float) -> bool:
        """Whether a note is to be written now."""
        entry = self._written.get(note.key)
        if entry is None:
            return True
        pause_s = REPEATS_S[min(entry.times, len(REPEATS_S)) - 1]
        return now_s - entry.at_s >= pause_s

    def times(self, note: Note) -> int:
        """How often a note has been written."""
        entry = self._written.get(note.key)
        return 0 if entry is None else entry.times

    def record_write(self, note: Note, now_s: float, times: int) -> None:
        """A note has been written, and so many times by now."""
        self._written[note.key] = _Written(now_s, times)
        if len(self._written) >= self._sweeps_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget objects that are gone; the next time is when as many again have come."""
        for key in [key for key in self._written if not self._exists(key[0], key[1])]:
            del self._written[key]
        for key in list(self._written)[: max(0, len(self._written) - REMEMBERED)]:
            del self._written[key]
        self._sweeps_at = max(SWEPT_AT, 2 * len(self._written))


@dataclass(frozen=True, slots=True)
class _Dated:
    """A note, and when it was taken first and last."""

    note: Note
    first_ms: int
    last_ms: int


class EventRecorder:
    """Writes notes as events; `run` has to be running for anything to be written."""

    def __init__(
        self,
        api: Api,
        clock: Clock,
        timing: Timing,
        may_write: Callable[[Note], bool] = lambda _: True,
        exists: Callable[[Ref, str], bool] = lambda _about, _uid: True,
    ) -> None:
        """may_write: asked before each request, whether the event of a note is still due.

        exists: whether the object of a uid exists; what was written of others is forgotten.
        """
        self._api = api
        self._clock = clock
        self._may_write = may_write
        self._book = EventHistory(exists)
        self._outbox: WriteQueue[Key, _Dated] = WriteQueue(
            lambda _, dated: self._write(dated),
            timing,
            at_once=AT_ONCE,
            most=MOST_WAITING,
            on_failure=lambda key, error: log.debug(
                "event %s of %s not written: %s", key[2], key[0], error
            ),
        )

    @property
    def num_dropped(self) -> int:
        """Events that were given up because too many waited."""
        return self._outbox.num_dropped

    def note(self, note: Note) -> None:
        """Have a note written, unless the same one was written lately."""
        if self._book.is_due(note, self._clock.monotonic()):
            now_ms, waits = note.at_ms or self._clock.now_ms(), self._outbox.pending_value(note.key)
            first_ms = now_ms if waits is None else waits.first_ms
            self._outbox.enqueue(note.key, _Dated(note, first_ms, now_ms))

    def clear(self) -> None:
        """Give up every event that waits."""
        self._outbox.clear()

    async def run(self) -> None:
        """Write until cancelled."""
        await self._outbox.run()

    async def until_idle(self) -> None:
        """Wait until everything is written."""
        await self._outbox.until_idle()

    async def _write(self, dated: _Dated) -> None:
        note = dated.note
        if not self._may_write(note):
            return
        times = self._book.times(note)
        try:
            times = await (self._repeat(dated, times) if times else self._create(dated))
        except AlreadyExists:
            # Written by the process before this one, which knew how often.
            known = await self._api.read(note.ref)
            times = await self._repeat(dated, known.get("count") or 1)
        except NotFound:
            if not times:
                raise
            # Servers forget events after an hour.
            times = await self._create(dated)
        self._book.record_write(note, self._clock.monotonic(), times)

    async def _create(self, dated: _Dated) -> int:
        first, last = format_time(dated.first_ms), format_time(dated.last_ms)
        await self._api.create(dated.note.ref, build_event(dated.note, first, last))
        return 1

    async def _repeat(self, dated: _Dated, times: int) -> int:
        """Count a note that was written so often once more; how often it is now."""
        note, last = dated.note, format_time(dated.last_ms)
        body = {"lastTimestamp": last, "message": _cut(note.message), "count": times + 1}
        await self._api.patch(note.ref, body)
        return times + 1


def _cut(message: str) -> str:
    message = printable(message)
    return message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"


def build_event(note: Note, first: str, last: str) -> Raw:
    """A new event; first, last: when it happened, as the API writes times."""
    about, ref = note.about, note.ref
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
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "involvedObject": {name: value for name, value in involved.items() if value},
        "type": note.type.value,
        "reason": note.reason,
        "message": _cut(note.message),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": first,
        "lastTimestamp": last,
        "count": 1,
    }
