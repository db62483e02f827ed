"""One kind of object, listed once and watched from then on, as reflectors do.

`ReflectorState` decides what comes next and what an answer means; it does no I/O and has no clock.
`reflect` carries that out. After a break the watch goes on from the last resource version; only
when that is no longer kept is everything listed again.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.kube.client.errors import (
    ApiError,
    Garbled,
    Gone,
    KubeError,
    ServerFault,
    TooMany,
    Unreachable,
    error_from_status,
)
from optsched.kube.runtime.backoff import Backoff, BackoffSteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from optsched.api.kinds import Kind
    from optsched.kube.client.interfaces import Page, Raw, Source

PAGE_SIZE: Final = 500
RETRIES: Final = BackoffSteps(first_s=0.2, most_s=15.0)
AWAY_S: Final = 2.0
"""The longest pause while the server is away or faulty: soon after its return all is followed.

It holds until something has worked. A server that is back says first that versions are gone, and
that its storage is not ready; how long it was away does not count for those.
"""

ABSENT_S: Final = 60.0
"""The pause before a kind that is not installed is looked for again."""

LIST_AFTER: Final = 8
"""Failures of a watch in a row after which its resource version is no longer trusted."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of a list: all objects that exist, from the first page to the last.

    resource_version: of the list as a whole; empty where it is not known.
    """

    items: tuple[Raw, ...]
    is_first: bool = True
    is_last: bool = True
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Changed:
    """An object was created or changed."""

    obj: Raw


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object is gone; `obj` is as it was last."""

    obj: Raw


WatchEvent: TypeAlias = Listed | Changed | Deleted


@dataclass(frozen=True, slots=True)
class FetchPage:
    """Ask for a page of the list, after a pause."""

    token: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class StartWatch:
    """Watch from a resource version on, after a pause."""

    resource_version: str
    pause_s: float


class ReflectorState:
    """What is known of one list and watch, and what to do next."""

    def __init__(
        self,
        chance: Callable[[], float],
        retries: BackoffSteps = RETRIES,
        absent: tuple[type[KubeError], ...] = (),
    ) -> None:
        """absent: errors that say, before anything else has come, that there is no such kind."""
        self._backoff = Backoff(retries, chance)
        self._absent = absent
        self._has_worked = False
        self._pause_s = 0.0
        self._token = ""
        self._version = ""
        self._is_silent = False
        self._was_away = False

    def step(self) -> FetchPage | StartWatch:
        """What to do next."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if not self._version:
            return FetchPage(self._token, pause_s)
        self._is_silent = True
        return StartWatch(self._version, pause_s)

    def page(self, page: Page) -> Listed:
        """A page has come; raises KubeError for one from which no watch can go on."""
        if not page.token and not page.resource_version:
            raise Garbled("a list has no resource version")
        is_first, self._token = not self._token, page.token
        if not page.token:
            self._version = page.resource_version
        self._works()
        items, version = tuple(page.items), page.resource_version
        return Listed(items, is_first, is_last=not page.token, resource_version=version)

    def line(self, line: bytes) -> Changed | Deleted | None:
        """What a line of a watch says; raises KubeError for one that ends it."""
        kind, obj = _event(line)
        if kind == "ERROR":
            raise error_from_status(obj)
        self._version = _version_of(obj)
        self._works()
        if kind == "BOOKMARK":
            return None
        return Deleted(obj) if kind == "DELETED" else Changed(obj)

    def closed(self) -> None:
        """The server has ended the watch; one that never said anything has failed."""
        if self._is_silent:
            self._pause_s = min(self._backoff.next_delay(), AWAY_S)

    def failed(self, error: KubeError) -> None:
        """The list or the watch has failed."""
        self._pause_s = self._backoff.next_delay()
        self._was_away = self._was_away or isinstance(error, Unreachable | ServerFault)
        if self._was_away:
            self._pause_s = min(self._pause_s, AWAY_S)
        if isinstance(error, Gone):
            # The list that comes next is another request.
            self._pause_s = min(self._pause_s, RETRIES.first_s)
        if isinstance(error, self._absent) and not self._has_worked:
            self._pause_s = ABSENT_S
        if isinstance(error, TooMany) and error.retry_after_s is not None:
            self._pause_s = max(self._pause_s, error.retry_after_s)
        if isinstance(error, Gone) or self._is_lost(error):
            self._version = self._token = ""

    def _is_lost(self, error: KubeError) -> bool:
        """Whether going on from where it stood makes no sense, though the server is there."""
        return self._backoff.failures % LIST_AFTER == 0 and isinstance(error, ApiError | Garbled)

    def _works(self) -> None:
        self._is_silent = False
        self._has_worked = True
        self._was_away = False
        self._backoff.reset()


def _event(line: bytes) -> tuple[str, Raw]:
    try:
        event = json.loads(line)
        kind, obj = event["type"], event["object"]
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise Garbled("a line of a watch is not an event") from e
    if not isinstance(kind, str) or not isinstance(obj, dict):
        raise Garbled("a line of a watch is not an event")
    return kind, obj


def _version_of(obj: Raw) -> str:
    meta = obj.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not isinstance(version, str) or not version:
        raise Garbled("an event of a watch has no resource version")
    return version


async def reflect(
    source: Source,
    kind: Kind,
    reflection: ReflectorState,
    sleep: Callable[[float], Awaitable[None]],
    on_failure: Callable[[Kind, KubeError], None],
) -> AsyncIterator[WatchEvent]:
    """The events of a kind, for ever.

    Parameters
    ----------
    source, kind
        Whom to ask for what.
    reflection
        Where it stands; a fresh one to begin with.
    sleep
        Waits for so many seconds.
    on_failure
        Told of every failure; it is tried again all the same.

    """
    while True:
        step = reflection.step()
        if step.pause_s:
            await sleep(step.pause_s)
        try:
            if isinstance(step, FetchPage):
                yield reflection.page(await source.list_page(kind, PAGE_SIZE, step.token))
                continue
            async with aclosing(source.watch_lines(kind, step.resource_version)) as lines:
                async for line in lines:
                    event = reflection.line(line)
                    if event is not None:
                        yield event
            reflection.closed()
        except KubeError as e:
            reflection.failed(e)
            on_failure(kind, e)
