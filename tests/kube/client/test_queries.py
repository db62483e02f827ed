"""Queries for selected objects of a kind, and watches of one object."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import QUEUE, Ref
from optsched.kube.cache.reflector import watch_object
from optsched.kube.client.client import list_objects
from optsched.kube.client.errors import Expired, Forbidden, KubeError, Unreachable
from optsched.kube.client.listing import EVERYTHING, Page, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from optsched.api.kinds import Kind
    from optsched.kube.client.listing import Raw

GONE = Expired(410, "Expired", "too old")


class Source:
    """A source that gives prepared responses in sequence."""

    def __init__(self, *answers: Page | KubeError, lines: tuple[dict[str, Any], ...] = ()) -> None:
        self._answers = list(answers)
        self._lines = lines
        self.asked: list[tuple[str, Selection]] = []

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        assert (kind, limit) == (QUEUE, 500)
        self.asked.append((token, selection))
        await asyncio.sleep(0)
        answer = self._answers.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return answer

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append((resource_version, selection))
        await asyncio.sleep(0)
        for line in self._lines:
            yield json.dumps(line).encode()


def obj(name: str, version: str = "1") -> Raw:
    return {"metadata": {"name": name, "resourceVersion": version}}


def test_pages_are_put_together_and_begun_anew_when_they_are_not_kept() -> None:
    selection = Selection("ns", labels="a=b")
    first = Page([obj("a")], "1", "next")
    source = Source(first, GONE, first, Page([obj("b")], "1"))
    found = asyncio.run(list_objects(source, QUEUE, selection))
    assert [each["metadata"]["name"] for each in found] == ["a", "b"]
    assert source.asked == [(token, selection) for token in ("", "next", "", "next")]
    assert selection.query == {"labelSelector": "a=b"}
    with pytest.raises(Expired):
        asyncio.run(list_objects(Source(GONE, GONE, GONE), QUEUE))


def states(source: Source, number: int, told: list[KubeError]) -> list[str | None]:
    """Return the resource versions of the first states of queue q."""

    async def seen() -> list[str | None]:
        found: list[str | None] = []
        async for state in watch_object(source, Ref(QUEUE, "", "q"), told.append):
            found.append(state and state["metadata"]["resourceVersion"])
            if len(found) == number:
                break
        return found

    return asyncio.run(seen())


def test_states_of_an_object_come_one_after_the_other() -> None:
    lines = (
        {"type": "MODIFIED", "object": obj("q", "2")},
        {"type": "DELETED", "object": obj("q", "3")},
    )
    source = Source(Page([obj("q")], "1"), lines=lines)
    assert states(source, 3, []) == ["1", "2", None]
    narrow = Selection(fields="metadata.name=q")
    assert source.asked == [("", narrow), ("1", narrow)]


def test_what_is_not_there_is_a_state_too() -> None:
    assert states(Source(Page([], "1")), 1, []) == [None]


def test_what_passes_is_tried_again_and_what_does_not_is_raised() -> None:
    told: list[KubeError] = []
    away = Unreachable("refused")
    assert states(Source(away, Page([obj("q")], "1")), 1, told) == ["1"]
    assert told == [away]
    with pytest.raises(Forbidden):
        states(Source(Forbidden(403, "Forbidden", "no")), 1, told)
