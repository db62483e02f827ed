"""Requests to UFM over real TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from optsched.api.kinds import SECRET, Ref
from optsched.controllers.effects import Fabric
from optsched.kube.controllers import executor as asked
from optsched.kube.controllers.executor import UfmClient
from tests.kube.fakes import FakeApi, FakeClock
from tests.support.ufm import PASSWORD, Ufm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio

WHERE = ("secrets", "ufm")
LINKS = (("n1", "s1"), ("n2", "s1"))


@pytest.fixture
def ufm(tmp_path: Path) -> Iterator[Ufm]:
    with Ufm(tmp_path) as ufm:
        ufm.links = LINKS
        yield ufm


@pytest_asyncio.fixture(autouse=True)
async def ended(ufm: Ufm) -> AsyncIterator[None]:
    """Wait at the end for TLS connections, which close only after their client."""
    yield
    async with asyncio.timeout(60):
        while ufm.num_open:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


def reader(data: dict[str, str] | None) -> UfmClient:
    api = FakeApi()
    if data is not None:
        meta = {"name": WHERE[1], "namespace": WHERE[0]}
        api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
        assert Ref(SECRET, *WHERE) in api.objects
    return UfmClient(api, FakeClock())


async def problem(data: dict[str, str] | None, fabric: Fabric) -> str:
    answer = await reader(data).read_fabric(fabric)
    assert answer.links == ()
    assert answer.problem.startswith(f"{fabric.url}: ")
    assert PASSWORD not in answer.problem
    return answer.problem.removeprefix(f"{fabric.url}: ")


async def test_its_list_is_read_with_the_credentials_of_the_secret(ufm: Ufm) -> None:
    answer = await reader(ufm.secret()).read_fabric(Fabric(ufm.url, WHERE))
    assert (answer.links, answer.problem) == (LINKS, "")
    assert answer.at_ms == FakeClock().now_ms()


async def test_a_certificate_that_nobody_trusts_is_refused_unless_told_otherwise(ufm: Ufm) -> None:
    strange = ufm.secret(trusts=False)
    assert "certificate verify failed" in await problem(strange, Fabric(ufm.url, WHERE))
    assert ufm.asked == []
    answer = await reader(strange).read_fabric(Fabric(ufm.url, WHERE, verifies=False))
    assert answer.links == LINKS


async def test_what_the_secret_lacks_is_told(ufm: Ufm) -> None:
    fabric = Fabric(ufm.url, WHERE)
    assert "not found" in await problem(None, fabric)
    said = await problem(ufm.secret(username="", password=""), fabric)
    assert said.endswith("has no username and no password")
    assert "cannot be read" in await problem({**ufm.secret(), "username": "/w=="}, fabric)
    assert ufm.asked == []


@pytest.mark.parametrize("code", [302, 401, 500])
async def test_refusals_and_other_places_are_no_answer(ufm: Ufm, code: int) -> None:
    ufm.code = code
    said = await problem(ufm.secret(), Fabric(ufm.url, WHERE))
    assert said.startswith(f"UFM answers {code} ")
    assert len(ufm.asked) == 1


async def test_a_wrong_password_is_told(ufm: Ufm) -> None:
    said = await problem(ufm.secret(password="wrong"), Fabric(ufm.url, WHERE))
    assert said == "UFM answers 401 Unauthorized"


async def test_what_is_no_list_is_told(ufm: Ufm) -> None:
    ufm.body = b"<html>"
    assert "is not JSON" in await problem(ufm.secret(), Fabric(ufm.url, WHERE))


async def test_an_answer_without_end_is_not_read(ufm: Ufm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MAX_BYTES", 2**20)
    ufm.body = b" " * (3 * 2**20)
    assert await problem(ufm.secret(), Fabric(ufm.url, WHERE)) == (
        "the response is longer than 1 MiB"
    )


async def test_nobody_there_is_told(ufm: Ufm) -> None:
    said = await problem(ufm.secret(), Fabric("https://127.0.0.1:1", WHERE))
    assert "Cannot connect" in said
