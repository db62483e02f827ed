"""The expected evictions, placements, proofs and reasons of each shared case about decisions.

The other modules of this package explain these results. This module checks that no case is left
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from optsched.cluster.reasons import ReasonCode
from tests.cases.test_candidates import decide as decide_within
from tests.cases.test_candidates import values
from tests.cases.test_victims import decide, evicted, placed
from tests.support.effort import nightly_except
from tests.support.shared import found

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT = "volcano-default"


class End(NamedTuple):
    """The expected result of a case. A None field depends on the progress of the search."""

    case: str
    model: str
    victims: int | None
    num_placed: int | None
    is_proved: bool | None = None
    reasons: Collection[ReasonCode] = ()


WITH_SOLVER = (
    End("proportion_no_plan_100.yaml", DEFAULT, 0, 48, True),
    End("topology_no_plan_at_all.json", DEFAULT, 0, 236),
    End("no_plan_60_20118.json", DEFAULT, 0, 127),
    End("starve_reclaim.yaml", DEFAULT, 1, 1, None, [ReasonCode.DESERVED]),
    End("starve_reclaim_capacity.yaml", "crater", 1, 1, None, [ReasonCode.DESERVED]),
    End("one_bad_bid_stops_all.yaml", "capacity-hierarchical", 2, 2, None, [ReasonCode.DESERVED]),
    End("one_bad_bid_without_job2.yaml", "capacity-hierarchical", 2, 2, True),
    End("urgent_100.json", DEFAULT, None, None, False),
    End("random40_maxthroughput_worse_than_greedy.json", "max-throughput", 0, 76, False),
    End("drf_lex_none2.yaml", "drf-lexicographic", 0, 4, True),
    End("crash-hand.yaml", DEFAULT, 3, 2, True),
    End("min_FALSEPROOF_norej_volcano-default.yaml", DEFAULT, 1, 1, False),
    End("min_FALSEPROOF_norej_crater.yaml", "crater", 0, 1, False),
    End("h1b_joint_admission.yaml", "crater", 1, 2, True),
    End("h2_joint_victims.yaml", DEFAULT, 1, 2, True),
    End("impossible_wrong.yaml", DEFAULT, 0, 0, True, [ReasonCode.RESOURCES]),
    End("imp.yaml", DEFAULT, 0, 0, True, [ReasonCode.IMPOSSIBLE]),
    End("imp3.yaml", DEFAULT, 0, 0, True, [ReasonCode.IMPOSSIBLE]),
    End("free_node_ignored.yaml", DEFAULT, 0, 2),
    End("gpu.yaml", "gpu.conf.yaml", 0, 0, None, [ReasonCode.RESOURCES]),
    End("c.yaml", "c.conf.yaml", 1, 2),
    End("gpu_share_not_returned_16.json", DEFAULT, 5, 5, True),
    End("gpu_share_not_returned_4.json", DEFAULT, 1, 1, True),
    End("foreign_pods_starve.json", "ci.conf", 1, 1, True),
    End("growth_evicts.json", "ci.conf", 2, 2),
    End("growth_evicts.json", DEFAULT, 2, 2),
    End("gang_destroyed.json", "gang_destroyed.conf", 2, 2, True),
    End("tree-small-0.yaml", DEFAULT, None, None, False),
    End("idle.yaml", DEFAULT, 0, 1, None),
)

# `test_candidates` compares this case with the pipeline in less time.
QUICK = [end for end in WITH_SOLVER if end.case != "urgent_100.json"]

BY_THE_PIPELINE = (
    End("h2_joint_victims.yaml", DEFAULT, 2, 2, False),
    End("crash-hand.yaml", DEFAULT, 2, 2, False),
    End("gpu_share_not_returned_16.json", DEFAULT, 5, 5, False),
    End("foreign_pods_starve.json", "ci.conf", 1, 1, False),
    End("impossible_wrong.yaml", DEFAULT, 0, 0, False, [ReasonCode.RESOURCES]),
    End("imp.yaml", DEFAULT, 0, 0, False, [ReasonCode.IMPOSSIBLE]),
    End("free_node_ignored.yaml", DEFAULT, 0, 2),
    End("c.yaml", "c.conf.yaml", 1, 2),
    End("growth_evicts.json", "ci.conf", 2, 2),
    End("gang_destroyed.json", "gang_destroyed.conf", 2, 2),
    End("gpu.yaml", "gpu.conf.yaml", 0, 0),
)
"""The expected results with `--solver none`, where victims are never proved minimal."""


def test_no_case_is_left_out():
    cases = {
        path.name
        for path in found("cases/decisions/*")
        if path.suffix != ".conf" and not path.name.endswith(".conf.yaml")
    }
    # `test_candidates` compares this case with the pipeline, because a full solve takes long.
    compared = "random100_capacity_worse_than_greedy.json"
    assert cases <= {compared, *(end.case for end in WITH_SOLVER)}


def check_end(end: End, solver: str) -> None:
    plan = decide(end.case, end.model, solver)
    assert end.victims in (None, len(evicted(plan)))
    assert end.num_placed in (None, len(placed(plan)))
    assert end.is_proved in (None, plan.certificate.is_proved)
    assert {reason.code for reason in plan.pending.values()} >= set(end.reasons)


@pytest.mark.parametrize(
    "end", nightly_except(WITH_SOLVER, QUICK), ids=lambda end: f"{end.case}-{end.model}"
)
def test_a_case_ends_as_it_should(end: End):
    check_end(end, "cpsat")


@pytest.mark.parametrize("end", BY_THE_PIPELINE, ids=lambda end: f"{end.case}-{end.model}")
def test_so_it_does_without_the_solver(end: End):
    check_end(end, "none")


@pytest.mark.nightly
def test_more_time_admits_no_fewer_urgent_gangs():
    admitted = [
        values(decide_within("urgent_100.json", DEFAULT, work=work).plan.certificate.levels, "adm")
        for work in (0.05, 0.2)
    ]
    assert admitted == sorted(admitted)
