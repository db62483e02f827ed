"""What a grid of replays comes to: figures of each cell, means of models, paired differences."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from optsched.study.chargeback import HEADER, of_json, together
from optsched.study.comparison.figures import FIGURES
from optsched.study.comparison.statistics import CONFIDENCE, RESAMPLES, paired_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.study.chargeback import Chargeback
    from optsched.study.comparison.figures import Figure
    from optsched.study.comparison.grid import Cell
    from optsched.study.comparison.statistics import Difference


@dataclass(frozen=True, eq=False)
class Row:
    """A cell that has been played."""

    model: str
    trace: str
    seed: int
    result: Mapping[str, Any]

    def value(self, figure: Figure) -> float | None:
        """One of its figures."""
        return figure.of(self.result["metrics"])


@dataclass(frozen=True, eq=False)
class Comparison:
    """A grid that has been played, as far as it has.

    Attributes
    ----------
    models
        In the order of the grid; the first is what others are compared with.
    rows
        By model, trace and seed, in the order of the grid.
    failures
        Cells that could not be played, and why.

    """

    models: Sequence[str]
    rows: Sequence[Row]
    failures: Mapping[str, str]
    is_complete: bool

    @classmethod
    def of(
        cls,
        cells: Sequence[Cell],
        results: Mapping[str, Mapping[str, Any]],
        failures: Mapping[str, str],
    ) -> Self:
        """Of the cells of a grid, their results by key, and what went wrong by name."""
        rows = [
            Row(cell.model, cell.trace, cell.seed, results[cell.key])
            for cell in cells
            if cell.key in results
        ]
        models = tuple(dict.fromkeys(cell.model for cell in cells))
        return cls(models, rows, failures, len(rows) == len(cells))

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """What `as_json` has written."""
        rows = [Row(c["model"], c["trace"], c["seed"], c["result"]) for c in found["cells"]]
        models = tuple(m["name"] for m in found["models"])
        return cls(models, rows, found["failures"], found["complete"])

    def mean(self, model: str, figure: Figure) -> float | None:
        """Over the cells of a model in which there is something to measure."""
        found = [row.value(figure) for row in self.rows if row.model == model]
        values = [v for v in found if v is not None]
        return sum(values) / len(values) if values else None

    def difference(self, model: str, figure: Figure) -> Difference | None:
        """Of a model to the first, over the traces and seeds that both have; None of none."""
        base, other = (
            {
                (row.trace, row.seed): value
                for row in self.rows
                if row.model == name and (value := row.value(figure)) is not None
            }
            for name in (self.models[0], model)
        )
        both = [each for each in base if each in other]
        return paired_difference([other[each] for each in both], [base[each] for each in both])

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "apiVersion": "optsched.io/v1alpha1",
            "kind": "Comparison",
            "complete": self.is_complete,
            "baseline": self.models[0],
            "interval": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "method": "percentile"},
            "models": [self._of_model(model) for model in self.models],
            "cells": [
                {"model": r.model, "trace": r.trace, "seed": r.seed, "result": dict(r.result)}
                for r in self.rows
            ],
            "failures": dict(self.failures),
        }

    def _of_model(self, model: str) -> dict[str, Any]:
        means = {figure.name: self.mean(model, figure) for figure in FIGURES}
        apart = {figure.name: self.difference(model, figure) for figure in FIGURES}
        told = {name: None if d is None else asdict(d) for name, d in apart.items()}
        held = self.charges(model).as_json()
        return {"name": model, "means": means, "differences": told, "gpu_hours": held}

    def charges(self, model: str) -> Chargeback:
        """What queues and users have held under a model, all of its cells together."""
        of = (of_json(row.result["gpu_hours"]) for row in self.rows if row.model == model)
        return together(of)

    def gpu_hours_as_csv(self) -> str:
        """One line a cell, queue and user."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["model", "trace", "seed", *HEADER])
        for row in self.rows:
            for line in of_json(row.result["gpu_hours"]).lines:
                writer.writerow([row.model, row.trace, row.seed, *line])
        return text.getvalue()

    def as_csv(self) -> str:
        """One line a cell, one column a figure; empty where there was nothing to measure."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [f"{f.name} ({f.unit})" if f.unit else f.name for f in FIGURES]
        writer.writerow(["model", "trace", "seed", *columns])
        for row in self.rows:
            values = [row.value(figure) for figure in FIGURES]
            told = ["" if v is None else f"{v:.9g}" for v in values]
            writer.writerow([row.model, row.trace, row.seed, *told])
        return text.getvalue()
