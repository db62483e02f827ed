from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, fields, replace

import pytest

from optsched.cluster.trace import Trace
from optsched.study.chargeback import Chargeback
from optsched.study.comparison.compared_metrics import FIGURES, SHOWN
from optsched.study.comparison.comparison_table import Comparison, Row
from optsched.study.comparison.grid import columns_of
from optsched.study.simulation.simulation_metrics import JobTimes, Metrics, as_json
from tests.support.replays import measure

FINISHED, MAKESPAN, JCT, QUEUEING = (
    next(f for f in FIGURES if f.name == n)
    for n in ("finished", "makespan", "JCT mean", "queueing mean")
)
EMPTY = as_json(measure(Trace("t", (), (), ()), ()))
NOTHING = Chargeback(()).as_json()


def row(model: str, trace: str, seed: int = 0, **figures: object) -> Row:
    return Row(
        model, trace, seed, {"complete": True, "metrics": EMPTY | figures, "gpu_hours": NOTHING}
    )


def times(**ends: float | None) -> dict[str, list[object]]:
    """Return jobs that arrive at 0, start one second before their end, and end at the given second.

    `None` is the end of a job that never runs.
    """
    ends_ms = {name: None if end is None else int(end * 1000) for name, end in ends.items()}
    jobs = [
        JobTimes(name, 0, None if end is None else end - 1000, end) for name, end in ends_ms.items()
    ]
    return columns_of(jobs)


def played(model: str, seed: int, **ends: float | None) -> Row:
    finished = sum(end is not None for end in ends.values())
    found = row(model, "x", seed, finished=finished)
    return replace(found, result={**found.result, "jobs": times(**ends)})


def compared(*rows: Row, failures: dict[str, str] | None = None) -> Comparison:
    models = tuple(dict.fromkeys(r.model for r in rows))
    return Comparison(models, rows, failures or {}, is_complete=not failures)


def test_every_figure_of_a_replay_is_compared() -> None:
    known = set(asdict(measure(Trace("t", (), (), ()), ())))
    assert known == {field.name for field in fields(Metrics)}
    assert {f.path[0] for f in FIGURES} >= known - {"jobs", "started", "node_failures"} - {
        "cross_leaf_pairs"
    }
    assert {f.name for f in FIGURES} >= set(SHOWN)
    assert len({f.name for f in FIGURES}) == len(FIGURES)


def test_means_leave_out_what_was_not_measured() -> None:
    found = compared(
        row("a", "x", makespan_s=2.0), row("a", "y", makespan_s=None), row("a", "z", makespan_s=4.0)
    )
    assert found.mean_of_model("a", MAKESPAN) == 3.0
    assert compared(row("a", "x", makespan_s=None)).mean_of_model("a", MAKESPAN) is None


def test_differences_are_between_the_same_trace_and_seed() -> None:
    found = compared(
        row("a", "x", 0, makespan_s=1.0),
        row("a", "x", 1, makespan_s=100.0),
        row("a", "y", 0, makespan_s=10.0),
        row("b", "x", 1, makespan_s=90.0),
        row("b", "y", 0, makespan_s=12.0),
    )
    difference = found.difference("b", MAKESPAN)
    assert (difference.mean, difference.pairs) == (-4.0, 2)
    assert found.difference("a", MAKESPAN).mean == 0.0


def test_times_are_those_of_jobs_that_finished_under_every_model() -> None:
    found = compared(played("a", 0, long=90.0, short=20.0), played("b", 0, long=None, short=10.0))
    assert (found.mean_of_model("a", JCT), found.mean_of_model("b", JCT)) == (20.0, 10.0)
    assert (found.mean_of_model("a", QUEUEING), found.mean_of_model("b", FINISHED)) == (19.0, 1.0)
    assert found.unfinished("b") == {("x", 0): ("long",)}
    assert found.unfinished("a") == {}
    (rows,) = [m for m in found.as_json()["models"] if m["name"] == "b"]
    assert rows["unfinished"] == [{"trace": "x", "seed": 0, "jobs": ["long"]}]
    assert "20" in found.as_csv().splitlines()[1].split(",")


def test_a_model_that_starves_jobs_is_not_called_better() -> None:
    even = [played("a", seed, long=90.0, short=20.0 + seed) for seed in range(8)]
    fast = [played("b", seed, long=80.0, short=10.0 + seed) for seed in range(8)]
    starving = [*fast[:7], played("b", 7, long=None, short=1.0)]
    assert compared(*even, *fast).verdict("b", JCT) == "better"
    found = compared(*even, *starving)
    assert found.difference("b", JCT).is_clear
    assert found.verdict("b", JCT) == ""
    assert not found.has_equal_jobs("b")
    assert found.caveats == [
        "different jobs finished under b and a: only the number of finished jobs is judged"
    ]


def test_a_model_that_starves_jobs_of_the_warm_up_is_not_called_better() -> None:
    """Jobs of the warm-up have no metrics, but a model that starves them has more capacity."""
    even = [played("a", seed, long=90.0, short=20.0 + seed) for seed in range(8)]
    fast = [played("b", seed, long=80.0, short=10.0 + seed) for seed in range(8)]
    starved = {"unfinished_of_warm_up": ["early"]}
    starving = [*fast[:7], replace(fast[7], result={**fast[7].result, **starved})]
    assert compared(*even, *fast).verdict("b", JCT) == "better"
    found = compared(*even, *starving)
    assert found.verdict("b", JCT) == ""
    assert not found.has_equal_jobs("b")


def test_a_third_model_has_no_influence_on_the_difference_of_two() -> None:
    """Where another model starves long jobs, long jobs still count for the models that run them."""
    first = [played("a", seed, long=90.0, short=20.0 + seed) for seed in range(8)]
    slow = [played("b", seed, long=900.0, short=10.0 + seed) for seed in range(8)]
    starving = [played("c", seed, long=None, short=1.0) for seed in range(8)]
    two, three = compared(*first, *slow), compared(*first, *slow, *starving)
    assert two.difference("b", JCT).mean == three.difference("b", JCT).mean == 400.0
    assert two.verdict("b", JCT) == three.verdict("b", JCT) == "worse"
    assert three.mean_of_model("a", JCT) - three.mean_of_model("b", JCT) == 10.0
    assert three.verdict("c", JCT) == ""


def test_finishing_fewer_jobs_is_worse() -> None:
    whole = [played("a", seed, long=90.0, short=20.0) for seed in range(6)]
    starving = [played("b", seed, long=None, short=1.0) for seed in range(6)]
    assert compared(*whole, *starving).verdict("b", FINISHED) == "worse"


def test_one_trace_with_several_seeds_is_one_pair() -> None:
    same = {"trace": {"sha256": "1"}}
    rows = [
        replace(r, result={**r.result, **same})
        for model, end in (("a", 20.0), ("b", 10.0))
        for seed in range(8)
        for r in [played(model, seed, job=end)]
    ]
    found = compared(*rows)
    assert (found.difference("b", JCT).pairs, found.difference("b", JCT).mean) == (1, -10.0)
    assert found.verdict("b", JCT) == ""
    assert found.caveats[0].endswith("1 distinct trace of at least 6")


def test_session_times_of_a_machine_are_never_judged() -> None:
    rows = [
        row(m, "x", seed, session_s={"mean": s, "p50": s, "p95": s, "p99": s})
        for m, s in (("a", 2.0), ("b", 1.0))
        for seed in range(8)
    ]
    figure = next(f for f in FIGURES if f.name == "session mean")
    found = compared(*rows)
    assert found.difference("b", figure).is_clear
    assert found.verdict("b", figure) == ""


def test_json_has_everything_and_csv_a_line_for_each_cell() -> None:
    found = compared(
        row("a", "x, y", makespan_s=1.5, finished=3),
        row("b", "x, y", makespan_s=2.0, finished=4),
        failures={"b on z, seed 0": "it broke"},
    )
    told = json.loads(json.dumps(found.as_json()))
    assert (told["kind"], told["complete"], told["baseline"]) == ("Comparison", False, "a")
    assert told["failures"] == {"b on z, seed 0": "it broke"}
    assert told["models"][1]["means"]["makespan"] == 2.0
    assert told["models"][1]["differences"]["makespan"]["mean"] == 0.5
    assert [cell["model"] for cell in told["cells"]] == ["a", "b"]
    rows = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert [(r["trace"], r["makespan (s)"], r["finished"]) for r in rows] == [
        ("x, y", "1.5", "3"),
        ("x, y", "2", "4"),
    ]
    assert rows[0]["gap (part)"] == ""


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_a_figure_that_was_not_measured_is_none(figure) -> None:
    value = figure.value(EMPTY)
    assert value is None or value == 0
