from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.api.kinds import LEASE, Ref
from optsched.kube.client.errors import Conflict, Forbidden, KubeError, Unreachable
from optsched.kube.runtime.leader_election import (
    RELEASE_CONFLICTS,
    Election,
    Elector,
    LeaseTimes,
)
from optsched.kube.runtime.lifecycle import identity
from tests.kube.fakes import FakeApi, FakeClock, running, waiting
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK = ("volcano-system", "volcano")
REF = Ref(LEASE, *LOCK)
CUT = Unreachable("cut")


@dataclass
class OwnClock:
    """The clock of one machine, with a wrong date and a monotonic time from its own start."""

    world: FakeClock
    wrong_by_s: int

    def now_ms(self) -> int:
        return self.world.now_ms() + 1000 * self.wrong_by_s

    def monotonic(self) -> float:
        return self.world.monotonic() + self.wrong_by_s


class Town:
    """A server, a clock and a factory of candidates."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = FakeClock()

    def elector(self, name: str, wrong_by_s: int = 0) -> Elector:
        clock = OwnClock(self.clock, wrong_by_s)
        return Elector(self.api, Election(*LOCK), name, clock, waiting(self.clock))

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.objects[REF]["spec"]
        return spec


async def leads(elector: Elector) -> bool:
    """Return whether a candidate leads after one more step."""
    await elector.step()
    return elector.is_leading


@pytest.mark.asyncio
async def test_the_first_one_leads_and_says_so() -> None:
    town = Town()
    assert await leads(town.elector("a"))
    assert town.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2025-06-15T15:23:20.000000Z",
        "renewTime": "2025-06-15T15:23:20.000000Z",
        "leaseTransitions": 0,
    }


@pytest.mark.asyncio
async def test_a_leader_renews_without_asking_who_leads() -> None:
    town = Town()
    a = town.elector("a")
    await leads(a)
    town.api.calls.clear()
    town.clock.seconds += 2
    assert await leads(a)
    assert town.api.calls == ["patch Lease volcano-system/volcano"]
    assert town.spec["renewTime"] == "2025-06-15T15:23:22.000000Z"
    assert town.spec["acquireTime"] == "2025-06-15T15:23:20.000000Z"
    assert town.spec["leaseTransitions"] == 0


@pytest.mark.asyncio
async def test_others_wait_for_as_long_as_it_is_renewed() -> None:
    town = Town()
    a, b = town.elector("a"), town.elector("b", wrong_by_s=-7200)
    for _ in range(20):
        assert await leads(a)
        assert not await leads(b)
        town.clock.seconds += 2
    assert b.holder == "a"


@pytest.mark.asyncio
async def test_without_a_renewal_a_leader_stops_before_the_next_one_begins() -> None:
    town = Town()
    a, b = town.elector("a"), town.elector("b")
    await leads(a)
    assert not await leads(b)
    town.clock.seconds += 9.9
    assert a.is_leading
    town.clock.seconds += 0.1
    assert not a.is_leading
    town.clock.seconds += 5
    assert not await leads(b)
    town.clock.seconds += 0.1
    assert await leads(b)
    assert (town.spec["holderIdentity"], town.spec["leaseTransitions"]) == ("b", 1)
    assert not await leads(a)


@pytest.mark.asyncio
async def test_a_renewal_that_comes_late_begins_another_term() -> None:
    town = Town()
    a = town.elector("a")
    assert a.term == 0
    await leads(a)
    assert a.term == 1
    town.clock.seconds += 9
    await leads(a)
    assert a.term == 1
    town.clock.seconds += 10
    assert a.term == 0
    await leads(a)
    assert a.term == 2


@pytest.mark.asyncio
async def test_a_leader_that_released_is_followed_at_once() -> None:
    town = Town()
    a, b = town.elector("a"), town.elector("b")
    await leads(a)
    await a.release()
    assert not a.is_leading
    assert town.spec["holderIdentity"] == ""
    assert await leads(b)


@pytest.mark.asyncio
async def test_who_does_not_lead_releases_nothing() -> None:
    town = Town()
    a, b = town.elector("a"), town.elector("b")
    await leads(a)
    await leads(b)
    await b.release()
    assert town.spec["holderIdentity"] == "a"


@pytest.mark.asyncio
async def test_it_can_be_released_after_a_renewal_that_failed() -> None:
    town = Town()
    a = town.elector("a")
    await leads(a)
    town.api.lose("patch", CUT)
    with pytest.raises(Unreachable):
        await a.step()
    assert a.is_leading
    await a.release()
    assert town.spec["holderIdentity"] == ""


@pytest.mark.asyncio
async def test_it_can_be_released_while_a_renewal_is_under_way() -> None:
    """A stopping process cancels a renewal that the server has already accepted."""
    town = Town()
    a, b = town.elector("a"), town.elector("b")
    await leads(a)
    patch, is_taken = town.api.patch, asyncio.Event()

    async def hang(*arguments: Any) -> Any:
        await patch(*arguments)
        is_taken.set()
        await asyncio.Event().wait()

    town.api.patch = hang  # type: ignore[method-assign]
    renewal = asyncio.create_task(a.step())
    await is_taken.wait()
    renewal.cancel()
    await asyncio.wait([renewal])
    town.api.patch = patch  # type: ignore[method-assign]
    await a.release()
    assert town.spec["holderIdentity"] == ""
    assert await leads(b)


@pytest.mark.asyncio
async def test_a_release_that_always_conflicts_is_given_up() -> None:
    town = Town()
    a = town.elector("a")
    await leads(a)
    town.api.refuse("patch", *[Conflict(409, "Conflict", "")] * (RELEASE_CONFLICTS + 1))
    with pytest.raises(Conflict):
        await a.release()
    assert town.spec["holderIdentity"] == "a"


@pytest.mark.asyncio
async def test_what_somebody_else_was_given_by_hand_is_not_released() -> None:
    town = Town()
    a = town.elector("a")
    await leads(a)
    town.api.put({**town.api.objects[REF], "spec": {"holderIdentity": "b"}})
    with pytest.raises(Conflict):
        await a.step()
    await a.release()
    assert town.spec["holderIdentity"] == "b"


@pytest.mark.parametrize("error", [CUT, Conflict(409, "Conflict", ""), Forbidden(403, "", "")])
@pytest.mark.asyncio
async def test_a_failed_renewal_costs_nothing_if_the_next_one_works(error: KubeError) -> None:
    town = Town()
    a = town.elector("a")
    await leads(a)
    town.clock.seconds += 2
    town.api.refuse("patch", error)
    with pytest.raises(type(error)):
        await a.step()
    assert a.is_leading
    town.clock.seconds += 2
    assert await leads(a)
    assert town.spec["leaseTransitions"] == 0
    town.clock.seconds += 9
    assert a.is_leading


@pytest.mark.asyncio
async def test_of_two_that_want_the_same_lease_one_gets_it() -> None:
    town = Town()
    await leads(town.elector("old"))
    town.api.put({**town.api.objects[REF], "spec": {"holderIdentity": ""}})
    a, b = town.elector("a"), town.elector("b")
    results = await asyncio.gather(leads(a), leads(b), return_exceptions=True)
    assert results.count(True) == 1
    assert a.is_leading is not b.is_leading
    assert any(isinstance(result, Conflict) for result in results)


@pytest.mark.asyncio
async def test_the_holders_own_duration_counts() -> None:
    town = Town()
    await leads(town.elector("a"))
    spec = {"holderIdentity": "slow", "leaseDurationSeconds": 60}
    town.api.put({**town.api.objects[REF], "spec": spec})
    b = town.elector("b")
    assert not await leads(b)
    town.clock.seconds += 59
    assert not await leads(b)
    town.clock.seconds += 1.1
    assert await leads(b)


@pytest.mark.asyncio
async def test_it_keeps_leading_and_tells_what_fails() -> None:
    town = Town()
    a = town.elector("a")
    told: list[KubeError] = []
    town.api.refuse("patch", CUT)
    async with running(a.run(told.append)):
        while len(town.api.writes) < 4:
            await asyncio.sleep(0)
    assert told == [CUT]
    assert a.is_leading


@settings(max_examples=num_examples(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "refuse", "lose"]))))
def test_never_two_lead(steps: list[tuple[str, str]]) -> None:
    town = Town()
    electors = {"a": town.elector("a"), "b": town.elector("b", wrong_by_s=-5000)}

    async def play() -> None:
        for name, trouble in steps:
            if trouble:
                fail: Callable[[str, KubeError], None] = getattr(town.api, trouble)
                fail("patch", CUT)
            with suppress(KubeError):
                await electors[name].step()
            assert not (electors["a"].is_leading and electors["b"].is_leading)
            town.clock.seconds += 2.6

    asyncio.run(play())


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_have_to_fall(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="each has to be longer than the next"):
        LeaseTimes(*times)


def test_a_container_that_is_started_again_has_the_name_of_its_pod() -> None:
    first, second = (identity({"POD_UID": "u"}) for _ in range(2))
    assert first == second
    assert identity({"POD_UID": "v"}) != first
    assert identity({}) != identity({})


@pytest.mark.asyncio
async def test_a_failure_is_told_once_until_it_works_again() -> None:
    town, told = Town(), list[KubeError]()
    elector = town.elector("a")
    lost = Unreachable("refused")
    town.api.refuse("read", lost, lost, lost)
    town.api.refuse("create", None)
    town.api.refuse("patch", None, lost)
    again, leads = list[float](), list[float]()
    now = town.clock.monotonic
    run = asyncio.create_task(
        elector.run(told.append, lambda: again.append(now()), lambda: leads.append(now()))
    )
    while town.api.calls.count(f"patch {REF}") < 4:
        await asyncio.sleep(0)
    run.cancel()
    assert told == [lost, lost], "one for each time in which it did not work"
    assert len(again) == 2
    assert leads == again[:1], "a renewal that failed once costs no lead"
