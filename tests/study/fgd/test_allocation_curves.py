"""Tests of the published curves, number by number: five policies, ten seeds, 131 buckets."""

from __future__ import annotations

import csv
from functools import cache
from statistics import mean, stdev

import numpy as np
import pytest

from optsched.study.fgd.scoring_policies import POLICIES
from optsched.study.fgd.trace_replay import LAST, History, allocation_curves, replay
from optsched.study.fgd.workload import Arrivals, Workload, arrivals, read_workload
from tests.support.effort import IS_THOROUGH, nightly_except
from tests.support.research import RESEARCH
from tests.support.shared import ROOT, shared

SEEDS = range(42, 52)
# Seeds change only the order of pods.
PLAYED = SEEDS if IS_THOROUGH or RESEARCH == "full" else SEEDS[:2]
# The traces are unchanged, have GPU models, or lose some pods at the start.
FEW = ("default", "gpuspec33", "multigpu50") if IS_THOROUGH else ("default",)
ALL = (
    *("cpu050", "cpu100", "cpu200", "cpu250", "default"),
    *("gpushare100", "gpushare40", "gpushare60", "gpushare80"),
    *("gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"),
    *("multigpu20", "multigpu30", "multigpu40", "multigpu50"),
)


@cache
def published() -> dict[tuple[str, str, int], list[float]]:
    table = shared("traces", "fgd_expected", "analysis_allo_discrete.csv")
    return {
        (row["workload"], row["sc_policy"], int(row["seed"])): [
            float(row[str(at)]) for at in range(LAST + 1)
        ]
        for row in csv.DictReader(table.read_text("utf-8").splitlines())
    }


@cache
def prepared(trace: str) -> tuple[Workload, list[Arrivals]]:
    workload, problems = read_workload(shared("traces", "openb", f"openb_pod_list_{trace}.csv"))
    assert problems == ()
    return workload, [arrivals(workload, seed) for seed in PLAYED]


@pytest.mark.research
@pytest.mark.parametrize("policy", nightly_except(POLICIES, ["02-DotProd", "06-FGD"]))
@pytest.mark.parametrize("trace", ALL if RESEARCH == "full" else FEW)
def test_the_published_curves_come_out(trace: str, policy: str) -> None:
    workload, runs = prepared(trace)
    history = replay(workload, POLICIES[policy](workload), runs)
    found = allocation_curves(history, workload.total_milli)
    wanted = [published()[f"openb_pod_list_{trace}", policy, seed] for seed in PLAYED]
    assert found == wanted
    assert {len(curve) for curve in found} == {LAST + 1}


def test_every_published_run_of_these_policies_is_asked_for() -> None:
    requests = {(f"openb_pod_list_{trace}", p, s) for trace in ALL for p in POLICIES for s in SEEDS}
    by_chance = {key for key in published() if key[1] == "01-Random"}
    assert requests == set(published()) - by_chance


def test_the_documentation_shows_what_comes_out() -> None:
    printed = [published()["openb_pod_list_default", "06-FGD", seed][100] for seed in SEEDS]
    page = (ROOT / "docs" / "research.md").read_text("utf-8")
    assert f"`{printed}`" in page
    for policy in POLICIES:
        at_100 = [published()["openb_pod_list_default", policy, seed][100] for seed in SEEDS]
        assert f"`{policy:16} {mean(at_100):.2f} ± {stdev(at_100):.2f}`" in page


def history(arrived: list[int], allocated: list[int]) -> History:
    """Return one run on a cluster of ten GPUs."""
    rows = [np.array([row]) for row in (arrived, allocated)]
    nowhere = np.full((1, len(arrived)), -1)
    return History(*rows, np.array([len(arrived)]), nowhere, nowhere)


def test_a_bucket_is_the_mean_of_what_falls_into_it() -> None:
    arrived = [*range(0, 13100, 100), 13000]
    allocated = [*arrived[:130], 7000, 6000]
    (curve,) = allocation_curves(history(arrived, allocated), 10_000)
    assert (curve[:3], curve[130]) == ([0.0, 1.0, 2.0], 65.0)


def test_an_empty_bucket_takes_its_neighbours() -> None:
    arrived = list(range(0, 13100, 100))
    allocated = [*range(0, 5000, 100), *[4000] * 81]
    del arrived[50], allocated[50]
    (curve,) = allocation_curves(history(arrived, allocated), 10_000)
    assert curve[49:52] == [49.0, 44.5, 40.0]
