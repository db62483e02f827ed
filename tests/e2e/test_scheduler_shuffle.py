"""Pods that plugins move to other nodes on a real cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

BUSY = """
actions: "enqueue, allocate, backfill, shuffle"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins:
  - {name: predicates}
  - {name: nodeorder}
  - name: rescheduling
    arguments:
      strategies:
      - name: lowNodeUtilization
        params:
          thresholds: {cpu: 30, memory: 30}
          targetThresholds: {cpu: 60, memory: 80}
"""

LENT = """
actions: "enqueue, allocate, backfill, shuffle"
tiers:
- plugins: [{name: gang}, {name: conformance}, {name: pdb}]
- plugins:
  - {name: predicates}
  - name: tdm
    arguments: {tdm.evict.period: 1s}
"""


def measure(site: Site, node: str, cpu_percent: int) -> None:
    """Record the current CPU load of a node in its annotation."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = {"optsched.io/load": f"cpu {cpu_percent}% memory 10% at {at}"}
    site.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": note}})


def evictions(site: Site) -> list[str]:
    """Return the eviction messages of the gang's pods."""
    return [e["message"] for i in range(4) for e in site.events(f"work-{i}", "Evict")]


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_pods_move_off_a_busy_node_once_and_do_not_come_back(site: Site, solver: str) -> None:
    (busy,) = site.nodes(1)
    conf = site.file("busy.conf", BUSY)
    scheduler = site.scheduler("--solver", solver, "--config", str(conf))
    site.gang("work", 4, 1)
    site.await_bound("work", 4)
    (calm,) = site.nodes(1)
    measure(site, calm, 5)
    measure(site, busy, 90)
    # Each pod uses a quarter of the CPU: 65 % load after one eviction, 40 % after two.
    scheduler.await_metric(2, "optsched_evictions_total", action="shuffle", plugin="rescheduling")
    until(lambda: len(evictions(site)) == 2, "both are told")
    assert evictions(site)[0] == (
        f"evicted by shuffle for plugin rescheduling: node {busy} has 90% of cpu in use, above 60%"
    )
    until(lambda: site.story.num_bound("work") == 2, "two have left")
    site.members("work", range(4, 6))
    site.await_bound("work", 4)
    assert site.story.nodes_of("work") == {busy: 2, calm: 2}
    assert (
        scheduler.metric("optsched_evictions_total", action="shuffle", plugin="rescheduling") == 2
    )
    site.story.assert_bound_once()


def test_pods_leave_a_node_that_is_not_lent_any_more_as_its_budget_allows(site: Site) -> None:
    (lent,) = site.nodes(1)
    conf = site.file("lent.conf", LENT)
    scheduler = site.scheduler("--config", str(conf))
    site.gang("work", 4, 1, labels={"app": "work"})
    site.await_bound("work", 4)
    site.budget("work", {"app": "work"}, 2)
    label = {"metadata": {"labels": {"volcano.sh/revocable-zone": "night"}}}
    site.api.patch(f"/api/v1/nodes/{lent}", label)
    until(lambda: site.story.num_bound("work") == 2, "two have left")
    until(lambda: len(evictions(site)) == 2, "both are told")
    assert set(evictions(site)) == {
        f"evicted by shuffle for plugin tdm: zone night of node {lent} is closed at this hour"
    }
    scheduler.await_metric(2, "optsched_evictions_total", action="shuffle", plugin="tdm")
    assert site.story.num_bound("work") == 2


def test_a_scheduler_that_starts_anew_waits_for_the_rest_of_the_period(site: Site) -> None:
    (lent,) = site.nodes(1)
    conf = site.file("lent.conf", LENT.replace("1s", "1h"))
    scheduler = site.scheduler("--config", str(conf))
    site.gang("work", 4, 1)
    site.await_bound("work", 4)
    label = {"metadata": {"labels": {"volcano.sh/revocable-zone": "night"}}}
    site.api.patch(f"/api/v1/nodes/{lent}", label)
    until(lambda: site.story.num_bound("work") == 3, "one has left")
    scheduler.stop()
    scheduler = site.scheduler("--config", str(conf))
    site.nodes(1)
    site.gang("next", 2)
    site.await_bound("next", 2)
    assert site.story.num_bound("work") == 3
    assert not scheduler.metric("optsched_evictions_total", action="shuffle", plugin="tdm")
