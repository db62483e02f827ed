"""The results of a grid of replays: metrics per cell, means per model, and paired differences."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from optsched.study.chargeback import HEADER, of_json, sum_chargebacks
from optsched.study.comparison.compared_metrics import (
    CONFIDENCE,
    FIGURES,
    least_pairs,
    paired_differences,
)
from optsched.study.comparison.grid import measure_jobs, merge_reasons, read_job_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.study.chargeback import Chargeback
    from optsched.study.comparison.compared_metrics import Difference, Figure
    from optsched.study.comparison.grid import Cell, UnfinishedReason
    from optsched.study.simulation.simulation_metrics import JobTimes

_TIMES: Final = {"jct_s", "queueing_s", "ftf_mean", "ftf_worst", "ftf_unfair"}
_FINISHED: Final = ("finished",)


@dataclass(frozen=True, eq=False)
class Row:
    """The result of one replay in the grid."""

    model: str
    trace: str
    seed: int
    result: Mapping[str, Any]

    @property
    def replay(self) -> tuple[str, int]:
        """The trace and the seed; two replays that differ only in the model form a pair."""
        return self.trace, self.seed

    @cached_property
    def jobs(self) -> dict[str, JobTimes] | None:
        """The `JobTimes`, keyed by job name, or None if the result lists no jobs."""
        found = self.result.get("jobs")
        return None if found is None else read_job_times(found)

    @cached_property
    def finished(self) -> frozenset[str]:
        """The names of the finished jobs; empty if the result lists no jobs."""
        jobs = (self.jobs or {}).items()
        return frozenset(name for name, job in jobs if job.ended_ms is not None)

    @property
    def identity_of_finished(self) -> object:
        """A key that is equal for two replays in which the same jobs finished.

        The key contains the names of the finished jobs, or only their number if the result lists no
        jobs. The key also contains the jobs that arrived during the warm-up and did not finish.
        """
        finished = self.result["metrics"]["finished"] if self.jobs is None else self.finished
        return finished, frozenset(self.result.get("unfinished_of_warm_up", ()))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of a grid of replays; some replays may have no result."""

    models: Sequence[str]  # Model names in grid order; the first model is the baseline.
    rows: Sequence[Row]  # One result per model, trace and seed, in grid order.
    # Error messages of failed replays, keyed by the name of the grid cell.
    failures: Mapping[str, str]
    is_complete: bool

    @classmethod
    def from_results(
        cls,
        cells: Sequence[Cell],
        results: Mapping[str, Mapping[str, Any]],
        failures: Mapping[str, str],
    ) -> Self:
        """Build a comparison; `results` are keyed by cell key, `failures` by cell name."""
        rows = [
            Row(cell.model, cell.trace, cell.seed, results[cell.key])
            for cell in cells
            if cell.key in results
        ]
        models = tuple(dict.fromkeys(cell.model for cell in cells))
        return cls(models, rows, failures, len(rows) == len(cells))

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """Build a comparison from the JSON object that `as_json` returns."""
        rows = [Row(c["model"], c["trace"], c["seed"], c["result"]) for c in found["cells"]]
        models = tuple(m["name"] for m in found["models"])
        return cls(models, rows, found["failures"], found["complete"])

    @property
    def least_pairs(self) -> int:
        """Minimum number of distinct traces that is needed to call a model better or worse."""
        return least_pairs(max(len(self.models) - 1, 1))

    @cached_property
    def _finished(self) -> Mapping[tuple[str, int], list[frozenset[str]]]:
        """The jobs that finished under each model, keyed by (trace, seed)."""
        found: dict[tuple[str, int], list[frozenset[str]]] = {}
        for row in self.rows:
            if row.jobs is not None:
                found.setdefault(row.replay, []).append(row.finished)
        return found

    @cached_property
    def common(self) -> Mapping[tuple[str, int], frozenset[str]]:
        """The jobs that finished under all models, keyed by (trace, seed)."""
        return {replay: frozenset.intersection(*each) for replay, each in self._finished.items()}

    def value(self, row: Row, figure: Figure) -> float | None:
        """Return a metric of a replay; time metrics cover jobs that finished under all models."""
        if figure.path[0] not in _TIMES or row.jobs is None:
            return figure.value(row.result["metrics"])
        return figure.value(self._over_common[row.model, row.trace, row.seed])

    @cached_property
    def _over_common(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        return {
            (row.model, *row.replay): measure_jobs(row.jobs.values(), self.common[row.replay])
            for row in self.rows
            if row.jobs is not None
        }

    @cached_property
    def _over_pairs(self) -> dict[tuple[str, str, int], tuple[dict[str, Any], dict[str, Any]]]:
        """The time metrics under the first model and another model, by (model, trace, seed).

        The metrics cover the jobs that finished under both models. The difference between two
        models therefore does not depend on the other models in the comparison.
        """
        base = {row.replay: row for row in self.rows if row.model == self.models[0]}
        found = {}
        for row in self.rows:
            first = base.get(row.replay)
            if first is None or first.jobs is None or row.jobs is None:
                continue
            common = first.finished & row.finished
            found[row.model, *row.replay] = (
                measure_jobs(first.jobs.values(), common),
                measure_jobs(row.jobs.values(), common),
            )
        return found

    def unfinished(self, model: str) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return the jobs that finished only under other models, keyed by (trace, seed)."""
        return {
            row.replay: tuple(sorted(missing))
            for row in self.rows
            if row.model == model
            and row.jobs is not None
            and (missing := frozenset().union(*self._finished[row.replay]) - row.finished)
        }

    def reasons(self, model: str) -> list[UnfinishedReason]:
        """Return the reasons why gangs did not finish under a model, the most frequent first."""
        return merge_reasons(row.result for row in self.rows if row.model == model)

    def has_equal_jobs(self, model: str) -> bool:
        """Return whether a model and the first model finished the same jobs in every replay."""
        base = {r.replay: r for r in self.rows if r.model == self.models[0]}
        pairs = [(base[r.replay], r) for r in self.rows if r.model == model and r.replay in base]
        return all(a.identity_of_finished == b.identity_of_finished for a, b in pairs)

    def mean_of_model(self, model: str, figure: Figure) -> float | None:
        """Return a metric's mean under a model, over the replays in which it was measured."""
        found = [self.value(row, figure) for row in self.rows if row.model == model]
        values = [v for v in found if v is not None]
        return sum(values) / len(values) if values else None

    def difference(self, model: str, figure: Figure) -> Difference | None:
        """Return a metric's mean paired difference from the first model; None if unmeasured.

        If a trace is replayed with several solver seeds, the differences of these replays are
        averaged and count as one pair, because they are not independent samples.
        """
        return self._differences[model][figure.name]

    def verdict(self, model: str, figure: Figure) -> str:
        """Return `better` or `worse`, or an empty string if the difference is not significant.

        If different jobs finished under the two models, only the metric `finished` can be better or
        worse.
        """
        found = self.difference(model, figure)
        if found is None or not found.is_clear or not figure.is_judged:
            return ""
        if figure.path != _FINISHED and not self.has_equal_jobs(model):
            return ""
        return "better" if (found.mean < 0) == figure.is_better_low else "worse"

    @property
    def caveats(self) -> list[str]:
        """The reasons why no model is called better or worse, as clauses without a full stop."""
        found, others = [], self.models[1:]
        pairs = min((len(self._pairs(model)) for model in others), default=0)
        if others and pairs < self.least_pairs:
            played = "1 distinct trace" if pairs == 1 else f"{pairs} distinct traces"
            found.append(
                f"too few replays to call a model better or worse: {played} "
                f"of at least {self.least_pairs}"
            )
        found += [
            f"different jobs finished under {model} and {self.models[0]}: "
            "only the number of finished jobs is judged"
            for model in others
            if not self.has_equal_jobs(model)
        ]
        return found

    @cached_property
    def _differences(self) -> dict[str, dict[str, Difference | None]]:
        found: dict[str, dict[str, Difference | None]] = {}
        for model in self.models:
            pairs, found[model] = self._pairs(model), {}
            for is_judged in (True, False):
                figures = [f for f in FIGURES if f.is_judged is is_judged]
                table = [[self._mean_difference(f, rows) for rows in pairs] for f in figures]
                differences = paired_differences(table, max(len(self.models) - 1, 1))
                names = (figure.name for figure in figures)
                found[model].update(zip(names, differences, strict=True))
        return found

    def _pairs(self, model: str) -> list[list[tuple[Row, Row]]]:
        """Return the pairs of replays under the first and the given model, grouped by trace."""
        base = {row.replay: row for row in self.rows if row.model == self.models[0]}
        found: dict[object, list[tuple[Row, Row]]] = {}
        for row in self.rows:
            if row.model == model and row.replay in base:
                content = row.result.get("trace", {}).get("sha256") or row.replay
                found.setdefault(content, []).append((base[row.replay], row))
        return list(found.values())

    def _mean_difference(self, figure: Figure, pairs: Sequence[tuple[Row, Row]]) -> float | None:
        """Return the mean difference of a metric over pairs of replays.

        Time metrics cover the jobs that finished in both replays of a pair.
        """
        apart = []
        for first, other in pairs:
            metrics = self._over_pairs.get((other.model, *other.replay))
            if figure.path[0] not in _TIMES or metrics is None:
                metrics = first.result["metrics"], other.result["metrics"]
            a, b = map(figure.value, metrics)
            if a is not None and b is not None:
                apart.append(b - a)
        return sum(apart) / len(apart) if apart else None

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        models = []
        for model in self.models:
            differences = {}
            for figure in FIGURES:
                apart = self.difference(model, figure)
                judged = {"verdict": self.verdict(model, figure)}
                differences[figure.name] = None if apart is None else asdict(apart) | judged
            unfinished = [
                {"trace": trace, "seed": seed, "jobs": list(jobs)}
                for (trace, seed), jobs in self.unfinished(model).items()
            ]
            models.append(
                {
                    "name": model,
                    "means": {f.name: self.mean_of_model(model, f) for f in FIGURES},
                    "differences": differences,
                    "has_equal_jobs": self.has_equal_jobs(model),
                    "unfinished": unfinished,
                    "gpu_hours": self.charges(model).as_json(),
                }
            )
        return {
            "apiVersion": "optsched.io/v1alpha1",
            "kind": "Comparison",
            "complete": self.is_complete,
            "baseline": self.models[0],
            "interval": {
                "confidence": CONFIDENCE,
                "method": "Student's t, Bonferroni",
                "test": "sign flips, maximum over all metrics",
                "least_pairs": self.least_pairs,
            },
            "models": models,
            "cells": [
                {"model": r.model, "trace": r.trace, "seed": r.seed, "result": dict(r.result)}
                for r in self.rows
            ],
            "failures": dict(self.failures),
        }

    def charges(self, model: str) -> Chargeback:
        """Return the charges per queue and user under a model, summed over its replays."""
        rows = (row for row in self.rows if row.model == model)
        return sum_chargebacks(of_json(row.result["gpu_hours"]) for row in rows)

    def gpu_hours_as_csv(self) -> str:
        """Return the charges as CSV, with one line per cell, queue and user."""
        lines = (
            (row, line) for row in self.rows for line in of_json(row.result["gpu_hours"]).lines
        )
        return _as_csv(HEADER, lines)

    def as_csv(self) -> str:
        """Return the metrics as CSV, with one line per cell; unmeasured metrics are empty."""
        columns = [f"{f.name} ({f.unit})" if f.unit else f.name for f in FIGURES]
        values = ((row, (self.value(row, figure) for figure in FIGURES)) for row in self.rows)
        lines = ((row, ["" if v is None else f"{v:.9g}" for v in each]) for row, each in values)
        return _as_csv(columns, lines)


def _as_csv(columns: Iterable[str], lines: Iterable[tuple[Row, Iterable[object]]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "trace", "seed", *columns])
    writer.writerows([row.model, row.trace, row.seed, *cells] for row, cells in lines)
    return text.getvalue()
