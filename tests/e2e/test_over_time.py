"""The recorded past usage of queues on a real cluster survives a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.formats.codec.queues import USAGE, read_usage
from tests.support.api import until
from tests.support.live import QUEUES
from tests.support.users import begin, reach, settle

if TYPE_CHECKING:
    from optsched.cluster.amounts import Usage
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins:
  - {name: predicates}
  - name: capacity
    arguments: {usage.halfLife: 1h}
"""


def usage_of(site: Site, queue: str) -> Usage | None:
    annotations = site.api.get(f"{QUEUES}/{queue}")["metadata"].get("annotations", {})
    usage, errors = read_usage(annotations)
    assert errors == ()
    return usage


def cpu_seconds(site: Site, queue: str) -> float:
    usage = usage_of(site, queue)
    return 0.0 if usage is None else dict(usage.seconds).get("cpu", 0.0) / 1000


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_who_has_used_much_waits_also_after_a_restart(site: Site, solver: str) -> None:
    site.nodes(1, cpus=4)
    a, b = site.queue("a"), site.queue("b")
    config = site.file("over-time.conf", CONF)
    scheduler = begin(site, config, solver)
    site.gang("before", 4, queue=a)
    reach(site, {"before": 4})
    until(lambda: cpu_seconds(site, a) > 0, "what is used is written")
    site.complete("before")
    scheduler.stop()
    used = cpu_seconds(site, a)
    assert used > 0
    assert usage_of(site, b) is None, "who has used nothing has nothing to keep"
    for name, queue in (("more-a", a), ("more-b", b)):
        site.gang(name, 4, queue=queue)
    again = begin(site, config, solver)
    settle(site, again, {"more-a": 0, "more-b": 4})
    until(lambda: cpu_seconds(site, b) > 0, "what the other uses is written")
    again.stop()
    assert cpu_seconds(site, a) <= used * 1.001, "it fades, and is not lost"
    site.complete("more-b")


def test_without_a_half_life_queues_are_left_alone(site: Site) -> None:
    site.nodes(1, cpus=4)
    a = site.queue("a")
    plain = CONF.replace("    arguments: {usage.halfLife: 1h}\n", "")
    scheduler = begin(site, site.file("plain.conf", plain), "none")
    site.gang("g", 4, queue=a)
    settle(site, scheduler, {"g": 4})
    scheduler.stop()
    assert USAGE not in site.api.get(f"{QUEUES}/{a}")["metadata"].get("annotations", {})
