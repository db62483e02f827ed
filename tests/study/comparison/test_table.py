from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

import pytest

from optsched.domain.trace import Trace
from optsched.study.chargeback import Chargeback
from optsched.study.comparison.figures import FIGURES, SHOWN
from optsched.study.comparison.table import Comparison, Row
from optsched.study.metrics import Metrics, as_json, measure

FINISHED, MAKESPAN = (next(f for f in FIGURES if f.name == n) for n in ("finished", "makespan"))
EMPTY = as_json(measure(Trace("t", (), (), ()), ()))
NOTHING = Chargeback(()).as_json()


def row(model: str, trace: str, seed: int = 0, **figures: object) -> Row:
    return Row(
        model, trace, seed, {"complete": True, "metrics": EMPTY | figures, "gpu_hours": NOTHING}
    )


def compared(*rows: Row, failures: dict[str, str] | None = None) -> Comparison:
    models = tuple(dict.fromkeys(r.model for r in rows))
    return Comparison(models, rows, failures or {}, is_complete=not failures)


def test_every_figure_of_a_replay_is_compared() -> None:
    known = set(asdict(measure(Trace("t", (), (), ()), ())))
    assert known == set(Metrics.__slots__)
    assert {f.path[0] for f in FIGURES} >= known - {"jobs", "started", "node_failures"} - {
        "cross_leaf_pairs"
    }
    assert {f.name for f in FIGURES} >= set(SHOWN)
    assert len({f.name for f in FIGURES}) == len(FIGURES)


def test_means_leave_out_what_was_not_measured() -> None:
    found = compared(
        row("a", "x", makespan_s=2.0), row("a", "y", makespan_s=None), row("a", "z", makespan_s=4.0)
    )
    assert found.mean("a", MAKESPAN) == 3.0
    assert compared(row("a", "x", makespan_s=None)).mean("a", MAKESPAN) is None


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
    value = figure.of(EMPTY)
    assert value is None or value == 0
