"""What users were promised about sharing, on a real cluster with the configurations they have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.live import Site
    from tests.support.story import Story

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
STILL_S = 2.0
"""Twenty sessions, in which nothing may move once the shares are reached."""


def await_shares(site: Site, wanted: Mapping[str, int]) -> None:
    """Wait until gangs hold so many pods each, and see that it stays so."""

    def there() -> dict[str, set[str]]:
        pods = [pod for pod in site.story.pods() if pod.takes_room]
        return {gang: {p.name for p in pods if p.gang == gang} for gang in wanted}

    def holds(_: Story) -> bool:
        return {gang: len(names) for gang, names in there().items()} == wanted

    site.story.until(holds, f"shares {wanted}", PATIENCE_S)
    before = there()
    time.sleep(STILL_S)  # that nothing happens can not be awaited
    assert there() == before
    site.story.assert_within(site.cpus)


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_what_was_borrowed_comes_back_on_demand(site: Site, solver: str) -> None:
    """Q17: 100 CPUs, weights 3:1:1; what stands idle is lent, and given back: 60/20/20."""
    conf = shared("experiments", "conf", "seed-full.conf")
    site.nodes(10, cpus=10)
    qa, qb, qc = (site.queue(n, weight=w) for n, w in (("a", 3), ("b", 1), ("c", 1)))
    scheduler = site.scheduler("--config", str(conf), "--solver", solver)
    if solver == "cpsat":
        until(lambda: "solver ready" in scheduler.log, "the solver is ready")
    site.gang("a", 100, min_member=1, queue=qa)
    await_shares(site, {"a": 100})
    site.gang("b", 20, queue=qb)
    site.gang("c", 20, queue=qc)
    await_shares(site, {"a": 60, "b": 20, "c": 20})
    assert site.group_status("a")["phase"] == "Running"


def test_the_demo_of_the_capacity_plugin_ends_with_two_and_six(site: Site) -> None:
    """Q7: 8 CPUs, 2 and 6 deserved; the borrower gives back all that is due, pod by pod."""
    conf = shared("experiments", "conf", "crater.conf")
    site.nodes(2, cpus=4)
    small, large = (
        site.queue(n, deserved={"cpu": str(c)}) for n, c in (("small", 2), ("large", 6))
    )
    scheduler = site.scheduler("--config", str(conf))
    until(lambda: "solver ready" in scheduler.log, "the solver is ready")
    site.gang("borrower", 8, min_member=1, queue=small)
    await_shares(site, {"borrower": 8})
    site.gang("owner", 8, min_member=1, queue=large)
    await_shares(site, {"borrower": 2, "owner": 6})


def test_a_queue_that_is_not_reclaimable_gives_nothing_back(site: Site) -> None:
    """Q8."""
    conf = shared("experiments", "conf", "crater.conf")
    site.nodes(2, cpus=4)
    small = site.queue("small", deserved={"cpu": "2"}, reclaimable=False)
    large = site.queue("large", deserved={"cpu": "6"})
    site.scheduler("--config", str(conf))
    site.gang("borrower", 8, min_member=1, queue=small)
    await_shares(site, {"borrower": 8})
    site.gang("owner", 8, min_member=1, queue=large)
    await_shares(site, {"borrower": 8, "owner": 0})
