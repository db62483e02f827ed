"""Tests of the documented behaviour of sharing, on a real cluster with users' configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.users import begin, conf, reach, settle

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_what_was_borrowed_comes_back_on_demand(site: Site, solver: str) -> None:
    """Q17: queues with weights 3:1:1 borrow idle CPUs of 100, and return them: 60/20/20."""
    site.nodes(10, cpus=10)
    qa, qb, qc = (site.queue(n, weight=w) for n, w in (("a", 3), ("b", 1), ("c", 1)))
    scheduler = begin(site, conf("seed-full"), solver)
    site.gang("a", 100, min_member=1, queue=qa)
    reach(site, {"a": 100})
    site.gang("b", 20, queue=qb)
    site.gang("c", 20, queue=qc)
    settle(site, scheduler, {"a": 60, "b": 20, "c": 20})
    site.await_phase("a", "Running")


def test_the_demo_of_the_capacity_plugin_ends_with_two_and_six(site: Site) -> None:
    """Q7: the queues deserve 2 and 6 of 8 CPUs; the borrower returns its excess pod by pod."""
    site.nodes(2, cpus=4)
    small, large = (
        site.queue(n, deserved={"cpu": str(c)}) for n, c in (("small", 2), ("large", 6))
    )
    scheduler = begin(site, conf("crater"))
    site.gang("borrower", 8, min_member=1, queue=small)
    reach(site, {"borrower": 8})
    site.gang("owner", 8, min_member=1, queue=large)
    settle(site, scheduler, {"borrower": 2, "owner": 6})


def test_a_queue_that_is_not_reclaimable_gives_nothing_back(site: Site) -> None:
    """Q8: a non-reclaimable queue keeps its borrowed CPUs."""
    site.nodes(2, cpus=4)
    small = site.queue("small", deserved={"cpu": "2"}, reclaimable=False)
    large = site.queue("large", deserved={"cpu": "6"})
    scheduler = begin(site, conf("crater"))
    site.gang("borrower", 8, min_member=1, queue=small)
    reach(site, {"borrower": 8})
    site.gang("owner", 8, min_member=1, queue=large)
    site.await_waits("owner", "QueueDeservedExceeded", "not reclaimable")
    settle(site, scheduler, {"borrower": 8, "owner": 0})
