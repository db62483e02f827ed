from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.api.kinds import POD, QUEUE, Ref
from optsched.api.queue import parse_queue
from optsched.kube.client.errors import Forbidden
from optsched.kube.scheduler.bind_preparation import GateOpening
from optsched.kube.scheduler.status import StatusPatch
from optsched.kube.scheduler.status_writer import BUILTIN_QUEUES, make_writer
from tests.formats.objects import pod, queue
from tests.kube.fakes import FakeApi

if TYPE_CHECKING:
    from optsched.kube.client.listing import Raw

DEFAULT, ROOT = BUILTIN_QUEUES
PATCH = StatusPatch(DEFAULT.ref, {"status": {"running": 1}}, "status")


@pytest.mark.asyncio
async def test_objects_are_created_once() -> None:
    api = FakeApi()
    write = make_writer(api, lambda: True)
    for _ in range(2):
        await write(DEFAULT.ref, DEFAULT)
    assert len(api.writes) == 1


@pytest.mark.asyncio
async def test_status_goes_to_the_subresource() -> None:
    api = FakeApi(queue("default"))
    await make_writer(api, lambda: True)(PATCH.ref, PATCH)
    assert api.calls == ["patch Queue default status"]
    assert api.objects[PATCH.ref]["status"] == {"running": 1}


@pytest.mark.asyncio
async def test_what_is_gone_needs_no_status() -> None:
    await make_writer(FakeApi(), lambda: True)(PATCH.ref, PATCH)


@pytest.mark.asyncio
async def test_other_errors_are_for_the_outbox() -> None:
    api = FakeApi(queue("default"))
    api.refuse("patch", Forbidden(403, "Forbidden", ""))
    with pytest.raises(Forbidden):
        await make_writer(api, lambda: True)(PATCH.ref, PATCH)


@pytest.mark.asyncio
async def test_who_does_not_lead_writes_nothing() -> None:
    api = FakeApi()
    await make_writer(api, lambda: False)(DEFAULT.ref, DEFAULT)
    assert api.calls == []


def test_builtin_queues_are_volcanos() -> None:
    queues = {q.name: q for creation in BUILTIN_QUEUES if (q := parse_queue(creation.body)[0])}
    assert {name: (q.weight, q.reclaimable) for name, q in queues.items()} == {
        "default": (1, True),
        "root": (1, False),
    }
    assert ROOT.ref == Ref(QUEUE, "", "root")


def gated() -> Raw:
    made = pod("a")
    made["spec"]["schedulingGates"] = [{"name": "g"}]
    made["status"] = {"conditions": [{"type": "PodScheduled"}, {"type": "Mine"}]}
    return made


@pytest.mark.asyncio
async def test_a_pod_that_is_let_go_is_told_to_have_no_node() -> None:
    api = FakeApi(gated())
    ref = Ref(POD, "ns", "a")
    uid = api.objects[ref]["metadata"]["uid"]
    await make_writer(api, lambda: True)(ref, GateOpening(ref, uid, 0, "RESOURCES: none"))
    found = api.objects[ref]
    assert "schedulingGates" not in found["spec"]
    mine, told = found["status"]["conditions"]
    assert mine == {"type": "Mine"}
    assert told == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "RESOURCES: none",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }


@pytest.mark.asyncio
async def test_who_is_bound_meanwhile_is_told_nothing() -> None:
    made = gated()
    made["spec"]["nodeName"] = "n"
    api = FakeApi(made)
    ref = Ref(POD, "ns", "a")
    await make_writer(api, lambda: True)(ref, GateOpening(ref, "uid-a", 0, ""))
    assert api.calls == ["patch Pod ns/a"] or len(api.writes) == 1
