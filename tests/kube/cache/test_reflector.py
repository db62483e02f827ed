from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import POD
from optsched.kube.cache.reflector import (
    AWAY_S,
    LIST_AFTER,
    Changed,
    Deleted,
    FetchPage,
    Listed,
    ReflectorState,
    StartWatch,
    WatchEvent,
    reflect,
)
from optsched.kube.client.errors import Expired, Forbidden, Gone, KubeError, TooMany, Unreachable
from optsched.kube.client.listing import Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from optsched.api.kinds import Kind


def obj(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(kind: str, name: str, version: int) -> bytes:
    return json.dumps({"type": kind, "object": obj(name, version)}).encode()


def error_line(code: int, reason: str) -> bytes:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "sorry"}
    return json.dumps({"type": "ERROR", "object": status}).encode()


class End(Exception):
    """The error that ends a script."""


class Scripted:
    """A source that gives scripted responses and records its requests."""

    def __init__(self, *script: Page | KubeError | Sequence[bytes | KubeError]) -> None:
        self._script = list(script)
        self.asked: list[str] = []

    async def list_page(self, kind: Kind, limit: int, token: str = "", _: object = None) -> Page:
        self.asked.append(f"list {token}".strip())
        answer = self._next()
        assert isinstance(answer, Page)
        return answer

    async def watch_lines(
        self, kind: Kind, resource_version: str, _: object = None
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append(f"watch {resource_version}")
        answer = self._next()
        assert not isinstance(answer, Page)
        for each in answer:
            if isinstance(each, KubeError):
                raise each
            yield each

    def _next(self) -> Page | Sequence[bytes | KubeError]:
        if not self._script:
            raise End
        answer = self._script.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return answer


class Run:
    """A run of a reflector on a script, up to its end."""

    def __init__(self, *script: Page | KubeError | Sequence[bytes | KubeError]) -> None:
        self.source = Scripted(*script)
        self.events: list[WatchEvent] = []
        self.slept: list[float] = []
        self.failures: list[KubeError] = []

    async def run(self) -> Run:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        def failed(kind: Kind, error: KubeError) -> None:
            self.failures.append(error)

        with suppress(End):
            async for event in reflect(self.source, POD, ReflectorState(lambda: 0), sleep, failed):
                self.events.append(event)
        return self


@pytest.mark.asyncio
async def test_a_list_and_then_a_watch_that_goes_on_where_it_ended():
    run = await Run(
        Page([obj("a", 3)], "7"),
        [line("ADDED", "b", 8), line("BOOKMARK", "", 20)],
        [line("MODIFIED", "a", 21), line("DELETED", "b", 22)],
    ).run()
    assert run.source.asked == ["list", "watch 7", "watch 20", "watch 22"]
    assert run.events == [
        Listed((obj("a", 3),)),
        Changed(obj("b", 8)),
        Changed(obj("a", 21)),
        Deleted(obj("b", 22)),
    ]
    assert run.slept == []


@pytest.mark.asyncio
async def test_pages_come_as_they_are_read():
    run = await Run(Page([obj("a", 1)], "9", "more"), Page([obj("b", 2)], "9")).run()
    assert run.events == [
        Listed((obj("a", 1),), is_first=True, is_last=False),
        Listed((obj("b", 2),), is_first=False, is_last=True),
    ]
    assert run.source.asked == ["list", "list more", "watch 9"]


@pytest.mark.asyncio
async def test_a_page_that_is_no_longer_kept_starts_the_list_anew():
    gone = Expired(410, "Expired", "")
    run = await Run(Page([obj("a", 1)], "9", "more"), gone, Page([], "12")).run()
    assert run.source.asked == ["list", "list more", "list", "watch 12"]
    assert run.events[-1] == Listed((), is_first=True, is_last=True)


@pytest.mark.asyncio
async def test_a_page_that_did_not_come_is_asked_for_again():
    run = await Run(Page([], "9", "more"), Unreachable("cut"), Page([], "9")).run()
    assert run.source.asked == ["list", "list more", "list more", "watch 9"]


@pytest.mark.asyncio
@pytest.mark.parametrize("inside", [True, False])
async def test_an_expired_version_lists_again(inside: bool):
    gone = [error_line(410, "Expired")] if inside else Expired(410, "Expired", "")
    run = await Run(Page([], "7"), gone, Page([], "99")).run()
    assert run.source.asked == ["list", "watch 7", "list", "watch 99"]
    assert run.slept == [0.2]


@pytest.mark.asyncio
async def test_other_errors_inside_go_on_from_the_last_version():
    run = await Run(Page([], "7"), [line("ADDED", "a", 8), error_line(500, "InternalError")]).run()
    assert run.source.asked == ["list", "watch 7", "watch 8"]
    assert "sorry" in str(run.failures[0])


@pytest.mark.asyncio
async def test_a_broken_stream_goes_on_from_the_last_version():
    run = await Run(Page([], "7"), [line("ADDED", "a", 8), Unreachable("reset")]).run()
    assert run.source.asked == ["list", "watch 7", "watch 8"]


@pytest.mark.asyncio
async def test_failures_wait_longer_and_longer_until_something_works():
    cut = Unreachable("refused")
    run = await Run(cut, cut, cut, Page([], "7"), cut, [line("ADDED", "a", 8)], cut).run()
    assert run.slept == [0.2, 0.4, 0.8, 0.2, 0.2]


@pytest.mark.asyncio
async def test_watches_that_say_nothing_are_not_opened_in_a_hurry():
    run = await Run(Page([], "7"), [], []).run()
    assert run.slept == [0.2, 0.4]
    assert run.source.asked == ["list", "watch 7", "watch 7", "watch 7"]


@pytest.mark.asyncio
async def test_a_busy_server_says_how_long_to_wait():
    run = await Run(TooMany(429, "TooManyRequests", "", 9.0), Page([], "7")).run()
    assert run.slept == [9.0]


@pytest.mark.asyncio
async def test_after_an_outage_of_any_length_all_is_followed_soon():
    """The wait is short even after many retries, while a starting server responds 410 and 429."""
    away = [Unreachable("refused")] * 20
    starting = [Gone(410, "Expired", ""), *[TooMany(429, "TooManyRequests", "", 1.0)] * 5]
    run = await Run(Page([], "7"), *away, *starting, Page([], "8")).run()
    assert run.source.asked[-2:] == ["list", "watch 8"]
    assert run.slept[20:] == [0.2, *[AWAY_S] * 5]
    # Without an outage, the waits between retries to a busy server grow.
    busy = [TooMany(429, "TooManyRequests", "", 1.0)] * 7
    run = await Run(Page([], "7"), *busy).run()
    assert run.slept == [1.0, 1.0, 1.0, 1.6, 3.2, 6.4, 12.8]


@pytest.mark.asyncio
async def test_a_watch_that_is_refused_again_and_again_lists_in_the_end():
    refused = Forbidden(403, "Forbidden", "")
    run = await Run(Page([], "7"), *[refused] * LIST_AFTER, Page([], "8")).run()
    assert run.source.asked.count("watch 7") == LIST_AFTER
    assert run.source.asked[-2:] == ["list", "watch 8"]


@pytest.mark.asyncio
async def test_an_unreachable_server_is_no_reason_to_list():
    run = await Run(Page([], "7"), *[Unreachable("refused")] * (LIST_AFTER + 1)).run()
    assert run.source.asked.count("list") == 1


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {}}']
)
@pytest.mark.asyncio
async def test_what_makes_no_sense_ends_the_stream(broken: bytes):
    run = await Run(Page([], "7"), [line("ADDED", "a", 8), broken]).run()
    assert run.source.asked == ["list", "watch 7", "watch 8"]
    assert len(run.failures) == 1


@pytest.mark.asyncio
async def test_a_list_without_a_version_is_no_list():
    run = await Run(Page([], ""), Page([], "5")).run()
    assert run.source.asked == ["list", "list", "watch 5"]
    assert run.slept == [0.2]


def test_pauses_are_cut_by_chance() -> None:
    reflection = ReflectorState(lambda: 1)
    reflection.failed(Unreachable(""))
    assert reflection.step() == FetchPage("", 0.1)
    reflection.page(Page([], "3"))
    assert reflection.step() == StartWatch("3", 0.0)
