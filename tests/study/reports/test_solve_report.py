"""Reports of solves: the GPUs of each gang, the quality of the solution, and the waiting gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.study.reports.page import Film, Table, render
from optsched.study.reports.plans_view import BEFORE, PlansData, plan_film
from optsched.study.reports.solve_report import solve_page
from tests.support.pages import ROOT
from tests.support.stories import HARM, base, solved

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.study.reports.solve_report import SolvedModel

GPUS = ROOT / "instances" / "examples" / "gpus-model.yaml"


@pytest.fixture(scope="module")
def found() -> tuple[Snapshot, list[SolvedModel]]:
    return solved("packing.yaml", "volcano-default", "volcano-compatible")


def deal_of(found: tuple[Snapshot, list[SolvedModel]]) -> PlansData:
    snapshot, answers = found
    return PlansData(
        snapshot, {a.name: a.result.plan for a in answers if a.result.plan is not None}
    )


def test_no_gpu_has_two_owners_and_all_that_is_bound_sits(found) -> None:
    deal = deal_of(found)
    for name, plan in deal.plans.items():
        seats = deal.frames[name]
        lanes = [(s.node, lane) for s in seats for lane in s.lanes]
        assert len(lanes) == len(set(lanes))
        names = [node.name for node in deal.snapshot.nodes]
        tasks = {t.key: g.key for g in deal.snapshot.gangs for t in g.tasks}
        told = sorted((tasks[task], node) for task, node in plan.binds.items())
        assert sorted((s.gang, names[s.node]) for s in seats if s.is_new) == told


def test_the_film_goes_from_before_to_each_plan(found) -> None:
    film = plan_film(deal_of(found))
    assert film.data["captions"] == [
        "Before: 0 of 16 GPUs held",
        "volcano-default: 16 of 16 GPUs held, 3 gangs placed, 1 waiting",
        "volcano-compatible: 11 of 16 GPUs held, 2 gangs placed, 2 waiting",
    ]


def test_evicted_pods_leave_their_gpus() -> None:
    deal = deal_of(solved("shares.yaml", "volcano-default"))
    before, after = (deal.milli_by_queue(name).total() for name in (BEFORE, "volcano-default"))
    (plan,) = deal.plans.values()
    assert plan.evictions
    assert after < before


def test_large_clusters_are_put_together(found) -> None:
    snapshot, answers = found
    nodes = [replace(snapshot.nodes[0], name=f"many-{i:04d}") for i in range(200)]
    film = plan_film(deal_of((replace(snapshot, nodes=(*snapshot.nodes, *nodes)), answers)))
    assert len(film.data["places"]) == 202


def test_every_level_and_every_reason_is_told(found) -> None:
    page = solve_page(*found, base())
    parts = {s.name: s.parts for s in page.sections}
    (film, *_) = parts["nodes"]
    assert isinstance(film, Film)
    for answer, certificate, pending in zip(
        found[1], parts["certificate"], parts["pending"], strict=True
    ):
        plan = answer.result.plan
        assert plan is not None
        assert isinstance(certificate, Table)
        assert isinstance(pending, Table)
        assert [r[0].text for r in certificate.rows] == [c.name for c in plan.certificate.levels]
        assert page.sections[0].name == "pending"
        assert {r[0].text for r in pending.rows} == set(plan.pending) | set(plan.pending_pods)


def test_names_never_become_markup(found) -> None:
    snapshot, answers = found
    gangs = tuple(replace(g, key=f"{g.key}{HARM}", queue=HARM) for g in snapshot.gangs)
    text = render(solve_page(replace(snapshot, gangs=gangs), answers, base()))
    assert "<img" not in text
    assert text == render(solve_page(replace(snapshot, gangs=gangs), answers, base()))


def test_a_solve_without_a_plan_says_so(found) -> None:
    snapshot, (answer, _) = found
    none = replace(answer, result=replace(answer.result, plan=None))
    text = render(solve_page(snapshot, [none], base()))
    assert "there is no plan" in text


def test_parts_of_shared_gpus_are_drawn() -> None:
    deal = deal_of(solved("gpus.yaml", str(GPUS)))
    (after,) = (seats for name, seats in deal.frames.items() if name != BEFORE)
    parts = {(deal.snapshot.nodes[s.node].name, s.milli) for s in after if s.milli < 1000}
    assert parts
    for lane in {(s.node, lane) for s in after for lane in s.lanes}:
        assert sum(s.milli for s in after if (s.node, s.lanes[0]) == lane) <= 1000


def test_gpu_shares_that_no_plugin_assigns_are_not_counted_silently() -> None:
    snapshot, answers = solved("gpus.yaml", "volcano-default", str(GPUS))
    [warning] = solve_page(snapshot, answers, base()).warnings
    assert warning == (
        "volcano-default: the policy has no plugin deviceshare to assign the GPU shares of 3 pods; "
        "the GPUs held do not include them."
    )
