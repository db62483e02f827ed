"""Writes for one object run in parallel with writes for other objects."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from optsched.api.kinds import POD
from optsched.controllers.effects import Create
from optsched.kube.controllers.executor import (
    MAX_CONCURRENT_PER_OBJECT,
    ControllerMetrics,
    Executor,
)


def pods(job: str, number: int) -> list[Create]:
    names = (f"{job}-{index}" for index in range(number))
    return [Create(POD, {"metadata": {"name": name, "namespace": "ns"}}) for name in names]


def test_many_writes_for_one_object_hold_up_none_for_another() -> None:
    """A small job is created while the pods of a large job are being created."""
    begun: list[str] = []
    under_way = 0
    most = 0

    async def create(_: object, manifest: Any) -> Any:
        nonlocal under_way, most
        begun.append(manifest["metadata"]["name"])
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return manifest

    async def run() -> None:
        api = cast("Any", SimpleNamespace(create=create))
        store = cast("Any", SimpleNamespace(record_written=lambda *_: None))
        context = SimpleNamespace(may_write=lambda: True, metrics=ControllerMetrics())
        executor = Executor(api, store, cast("Any", context))
        await asyncio.gather(
            executor.carry_out(tuple(pods("large", 500))),
            executor.carry_out(tuple(pods("small", 2))),
        )

    asyncio.run(run())
    assert len(begun) == 502
    assert most <= MAX_CONCURRENT_PER_OBJECT + 2
    assert begun.index("small-1") < 2 * MAX_CONCURRENT_PER_OBJECT
