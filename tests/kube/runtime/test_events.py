from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.kinds import EVENT, POD, QUEUE, Ref
from optsched.api.meta import EventType
from optsched.api.wellknown import FULL_MESSAGE
from optsched.kube.client.errors import Forbidden, NotFound, Unreachable
from optsched.kube.runtime.events import MAX_WAITING, EventRecorder, Note
from tests.kube.fakes import FakeApi, FakeClock, running, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

POD_REF = Ref(POD, "ns", "p")


def note(message: str = "no room", code: str = "NotEnoughResources", **more: Any) -> Note:
    fields = {"about": POD_REF, "uid": "u", "reason": "Unschedulable", **more}
    return Note(type=EventType.WARNING, message=message, code=code, **fields)


class Office:
    """An event recorder with a fake API server and a fake clock."""

    def __init__(
        self, api: FakeApi | None = None, may_write: Callable[[Note], bool] = lambda _: True
    ) -> None:
        self.api = api or FakeApi()
        self.clock = FakeClock()
        self.recorder = EventRecorder(self.api, self.clock, waiting(FakeClock()), may_write)

    async def write(self, *notes: Note) -> None:
        for each in notes:
            self.recorder.note(each)
        async with running(self.recorder.queue.run()):
            await self.recorder.queue.until_idle()

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.api.of(EVENT)

    def count(self) -> int:
        (event,) = self.events
        return int(event["count"])


@pytest.mark.asyncio
async def test_an_event_is_as_kubectl_shows_it() -> None:
    office = Office()
    await office.write(note())
    (event,) = office.events
    del event["metadata"]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "p",
            "uid": "u",
        },
        "type": "Warning",
        "reason": "Unschedulable",
        "message": "no room",
        "source": {"component": "optsched"},
        "reportingComponent": "optsched",
        "firstTimestamp": "2025-06-15T15:23:20Z",
        "lastTimestamp": "2025-06-15T15:23:20Z",
        "count": 1,
    }


@pytest.mark.asyncio
async def test_what_was_written_lately_is_not_written_again() -> None:
    office = Office()
    await office.write(note(), note("less room"))
    await office.write(note("even less room"))
    (event,) = office.events
    assert (event["message"], event["count"]) == ("less room", 1)


@pytest.mark.asyncio
async def test_a_note_during_the_write_of_the_same_event_is_not_written_again() -> None:
    """Pods of a job that are refused side by side are one event, about one of the pods."""

    def add(each: Note) -> bool:
        if each.message == "no room":
            office.recorder.note(note("less room"))
        return True

    office = Office(may_write=add)
    await office.write(note())
    (event,) = office.events
    assert (event["message"], event["count"]) == ("no room", 1)


@pytest.mark.asyncio
async def test_another_object_reason_or_code_is_another_event() -> None:
    office = Office()
    others = note(about=Ref(POD, "ns", "q")), note(uid="v"), note(reason="X"), note(code="Gated")
    await office.write(note(), *others)
    assert len(office.events) == 5


@pytest.mark.asyncio
async def test_it_is_repeated_after_one_five_and_then_every_thirty_minutes() -> None:
    office = Office()
    written: list[int] = []
    for minute in range(100):
        before = len(office.api.writes)
        await office.write(note())
        if len(office.api.writes) > before:
            written.append(minute)
        office.clock.seconds += 60
    assert written == [0, 1, 6, 36, 66, 96]
    assert office.count() == len(written)
    (event,) = office.events
    assert event["firstTimestamp"] == "2025-06-15T15:23:20Z"
    assert event["lastTimestamp"] == "2025-06-15T16:59:20Z"


@pytest.mark.asyncio
async def test_another_process_goes_on_with_the_same_event() -> None:
    office = Office()
    await office.write(note())
    office.clock.seconds += 60
    await office.write(note())
    after = Office(office.api)
    await after.write(note("still no room"))
    assert after.count() == 3
    after.clock.seconds += 1799
    await after.write(note())
    assert after.count() == 3
    after.clock.seconds += 1
    await after.write(note())
    assert after.count() == 4


@pytest.mark.parametrize("count", [-(2**31), -7, 0, 2**31 - 1, None])
@pytest.mark.asyncio
async def test_an_event_that_a_user_has_forged_is_corrected(count: int | None) -> None:
    office = Office()
    await office.write(note())
    (forged,) = (each for ref, each in office.api.objects.items() if ref.kind == EVENT)
    forged |= {"count": count, "reason": "Forged", "type": "Normal"}
    forged["involvedObject"]["name"] = "other"
    after = Office(office.api)
    for _ in range(3):
        await after.write(note())
        after.clock.seconds += 1800
    (event,) = office.events
    assert 1 <= event["count"] < 2**31
    assert (event["reason"], event["type"]) == ("Unschedulable", "Warning")
    assert event["involvedObject"]["name"] == "p"


@pytest.mark.asyncio
async def test_an_event_that_the_server_forgot_is_written_anew() -> None:
    office = Office()
    await office.write(note())
    office.api.objects.clear()
    office.clock.seconds += 60
    await office.write(note())
    assert office.count() == 1


@pytest.mark.asyncio
async def test_names_are_allowed_however_long_the_object_is_called() -> None:
    ref = note(about=Ref(POD, "ns", "a" * 199 + "." + "b" * 53)).ref
    assert len(ref.name) <= 253
    assert ref.name.startswith("a" * 199 + ".")
    assert ".." not in ref.name


@pytest.mark.asyncio
async def test_what_has_no_namespace_is_told_in_the_default_one() -> None:
    office = Office()
    await office.write(note(about=Ref(QUEUE, "", "q")))
    (event,) = office.events
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


@pytest.mark.asyncio
async def test_long_messages_are_cut_to_what_the_server_takes() -> None:
    office = Office()
    await office.write(note("x" * 2000))
    (event,) = office.events
    assert event["message"] == "x" * 1023 + "…"


@pytest.mark.asyncio
async def test_the_whole_of_a_long_message_is_in_an_annotation() -> None:
    office = Office()
    await office.write(note("x" * 2000))
    (event,) = office.events
    assert event["metadata"]["annotations"] == {FULL_MESSAGE: "x" * 2000}


@pytest.mark.asyncio
async def test_a_short_message_needs_no_annotation() -> None:
    office = Office()
    await office.write(note("x" * 1024))
    (event,) = office.events
    assert "annotations" not in event["metadata"]


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "the namespace ends"), NotFound(404, "NotFound", "")]
)
@pytest.mark.asyncio
async def test_a_refused_event_is_tried_again_the_next_time_it_is_told(
    error: Forbidden | NotFound,
) -> None:
    office = Office()
    office.api.refuse("create", error)
    await office.write(note())
    assert office.events == []
    await office.write(note())
    assert office.count() == 1


@pytest.mark.asyncio
async def test_a_lost_answer_does_not_double_an_event() -> None:
    office = Office()
    office.api.lose("create", Unreachable("cut"))
    await office.write(note())
    assert len(office.events) == 1


@pytest.mark.asyncio
async def test_when_too_many_wait_the_oldest_are_given_up() -> None:
    office = Office()
    for i in range(MAX_WAITING + 3):
        office.recorder.note(note(uid=str(i)))
    assert office.recorder.queue.num_dropped == 3


@pytest.mark.asyncio
async def test_an_event_has_the_time_at_which_it_happened() -> None:
    office = Office()
    office.recorder.note(note())
    office.clock.seconds += 10
    office.recorder.note(note("less room"))
    office.clock.seconds += 600
    await office.write()
    (event,) = office.events
    assert event["firstTimestamp"] == "2025-06-15T15:23:20Z"
    assert event["lastTimestamp"] == "2025-06-15T15:23:30Z"
    office.clock.seconds += 60
    office.recorder.note(note("none"))
    office.clock.seconds += 600
    await office.write()
    assert office.events[0]["lastTimestamp"] == "2025-06-15T15:34:30Z"


@pytest.mark.asyncio
async def test_a_note_that_was_kept_for_a_while_has_the_time_at_which_it_happened() -> None:
    office = Office()
    await office.write(note(at_ms=office.clock.now_ms() - 5_000))
    assert office.events[0]["firstTimestamp"] == "2025-06-15T15:23:15Z"
    assert office.events[0]["lastTimestamp"] == "2025-06-15T15:23:15Z"


@pytest.mark.asyncio
async def test_what_is_not_due_any_more_is_not_written() -> None:
    gone = {"q"}
    office = Office(may_write=lambda each: each.about.name not in gone)
    await office.write(note(), note(about=Ref(POD, "ns", "q")))
    assert [event["involvedObject"]["name"] for event in office.events] == ["p"]
    gone.clear()
    await office.write(note(about=Ref(POD, "ns", "q")))
    assert len(office.events) == 2, "it may be told later"
