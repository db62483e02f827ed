"""List and then watch the objects of one kind, like client-go's Reflector.

`ReflectorState` decides on the next request and interprets the response, without I/O or a clock.
`reflect` sends the requests. After a failure, the watch resumes at the last resource version. All
objects are listed again if the last resource version has expired or the watch keeps failing.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.kube.client.errors import (
    ApiError,
    Forbidden,
    Garbled,
    Gone,
    KubeError,
    NotFound,
    Rejected,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
    error_from_status,
)
from optsched.kube.client.listing import EVERYTHING, PAGE_SIZE, Selection
from optsched.kube.runtime.timing import Backoff, BackoffSteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from optsched.api.kinds import Kind, Ref
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Page, Raw

RETRIES: Final = BackoffSteps(first_s=0.2, max_s=15.0)
AWAY_S: Final = 2.0
"""Maximum delay in seconds while the server is unavailable, so that watches resume soon.

This maximum applies until a request succeeds, because a restarted server may first report expired
versions or uninitialized storage.
"""

ABSENT_S: Final = 60.0
"""Seconds after which a kind that is not installed is listed again."""

LIST_AFTER: Final = 8
"""Number of consecutive watch failures after which all objects are listed again."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of a list; every existing object is in one of the list's pages.

    `resource_version` is the version of the whole list, or empty if unknown.
    """

    items: tuple[Raw, ...]
    is_first: bool = True
    is_last: bool = True
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Changed:
    """A watch event: an object was created or changed."""

    obj: Raw


@dataclass(frozen=True, slots=True)
class Deleted:
    """A watch event: an object was deleted; `obj` is its last state."""

    obj: Raw


WatchEvent: TypeAlias = Listed | Changed | Deleted


@dataclass(frozen=True, slots=True)
class FetchPage:
    """Request: fetch a page of the list after a delay."""

    token: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class StartWatch:
    """Request: start a watch at a resource version after a delay."""

    resource_version: str
    pause_s: float


class ReflectorState:
    """The state of one kind's list and watch; it determines the next request."""

    def __init__(
        self, chance: Callable[[], float], absent: tuple[type[KubeError], ...] = ()
    ) -> None:
        """Until a request succeeds, the errors in `absent` show that the kind is not installed."""
        self._backoff = Backoff(RETRIES, chance)
        self._absent = absent
        self._has_worked = False
        self._pause_s = 0.0
        self._token = ""
        self._version = ""
        self._is_silent = False
        self._was_away = False

    def step(self) -> FetchPage | StartWatch:
        """Return the next request, including the delay before this request."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if not self._version:
            return FetchPage(self._token, pause_s)
        self._is_silent = True
        return StartWatch(self._version, pause_s)

    def page(self, page: Page) -> Listed:
        """Handle a page of the list; raises KubeError if no watch can start from the list."""
        if not page.token and not page.resource_version:
            raise Garbled("a list has no resource version")
        is_first, self._token = not self._token, page.token
        if not page.token:
            self._version = page.resource_version
        self._works()
        items, version = tuple(page.items), page.resource_version
        return Listed(items, is_first, is_last=not page.token, resource_version=version)

    def line(self, line: bytes) -> Changed | Deleted | None:
        """Handle a line that a watch delivered; raises KubeError if the line ends the watch."""
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            raise Garbled("a watch sent a line that is not an event") from e
        if not isinstance(kind, str) or not isinstance(obj, dict):
            raise Garbled("a watch sent a line that is not an event")
        if kind == "ERROR":
            raise error_from_status(obj)
        meta = obj.get("metadata")
        version = meta.get("resourceVersion") if isinstance(meta, dict) else None
        if not isinstance(version, str) or not version:
            raise Garbled("a watch event has no resource version")
        self._version = version
        self._works()
        if kind == "BOOKMARK":
            return None
        return Deleted(obj) if kind == "DELETED" else Changed(obj)

    def closed(self) -> None:
        """Handle the end of a watch; a watch that delivered no event counts as failed."""
        if self._is_silent:
            self._pause_s = min(self._backoff.next_delay(), AWAY_S)

    def failed(self, error: KubeError) -> None:
        """Handle a failed list or watch: set the delay before the next request."""
        self._pause_s = self._backoff.next_delay()
        self._was_away = self._was_away or isinstance(error, Unreachable | ServerFault)
        if self._was_away:
            self._pause_s = min(self._pause_s, AWAY_S)
        if isinstance(error, Gone):
            # The next request lists the objects, so the longer delay after failed watches does not
            # apply.
            self._pause_s = min(self._pause_s, RETRIES.first_s)
        if isinstance(error, self._absent) and not self._has_worked:
            self._pause_s = ABSENT_S
        if isinstance(error, TooMany) and error.retry_after_s is not None:
            self._pause_s = max(self._pause_s, error.retry_after_s)
        # If the server responds but the watch keeps failing, the objects are listed again.
        keeps_failing = self._backoff.failures % LIST_AFTER == 0
        if isinstance(error, Gone) or (keeps_failing and isinstance(error, ApiError | Garbled)):
            self._version = self._token = ""

    def _works(self) -> None:
        self._is_silent = False
        self._has_worked = True
        self._was_away = False
        self._backoff.reset()


async def reflect(
    source: Client,
    kind: Kind,
    reflection: ReflectorState,
    sleep: Callable[[float], Awaitable[None]],
    on_failure: Callable[[Kind, KubeError], None],
    selection: Selection = EVERYTHING,
) -> AsyncIterator[WatchEvent]:
    """Yield the watch events of a kind, forever.

    Parameters
    ----------
    source
        Client of the API server.
    reflection
        A new `ReflectorState`, or the `ReflectorState` that an earlier call has used.
    sleep
        Function that waits for a number of seconds.
    on_failure
        Function called on every failure; the failed request is retried.
    """
    while True:
        step = reflection.step()
        if step.pause_s:
            await sleep(step.pause_s)
        try:
            if isinstance(step, FetchPage):
                yield reflection.page(
                    await source.list_page(kind, PAGE_SIZE, step.token, selection)
                )
                continue
            async with aclosing(
                source.watch_lines(kind, step.resource_version, selection)
            ) as lines:
                async for line in lines:
                    event = reflection.line(line)
                    if event is not None:
                        yield event
            reflection.closed()
        except KubeError as e:
            reflection.failed(e)
            on_failure(kind, e)


_FINAL: Final = (Unauthorized, Forbidden, NotFound, Rejected)


async def watch_object(
    source: Client, ref: Ref, on_failure: Callable[[KubeError], None]
) -> AsyncIterator[Raw | None]:
    """Yield each state of one object forever, and None while the object does not exist.

    `on_failure` is called on temporary errors, such as an unreachable server; the watch is then
    retried. Raises `KubeError` on permanent errors.
    """

    def report_failure(_: Kind, error: KubeError) -> None:
        if isinstance(error, _FINAL):
            raise error
        on_failure(error)

    only = Selection(ref.namespace, fields=f"metadata.name={ref.name}")
    state = ReflectorState(lambda: 0.5)
    async for event in reflect(source, ref.kind, state, asyncio.sleep, report_failure, only):
        if isinstance(event, Listed):
            for obj in event.items or (None,):
                yield obj
        else:
            yield None if isinstance(event, Deleted) else event.obj
