"""A grid of replays: models × traces × seeds. Cells are independent of each other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from optsched import __version__
from optsched.formats.files.atomic_write import write_atomically
from optsched.session.solve_settings import solver_of
from optsched.study.comparison.job_outcomes import columns_of, reasons_of
from optsched.study.simulation.replay_trace import (
    SYNTHETIC,
    as_result,
    fingerprint,
    play,
    read_given,
)
from optsched.study.simulation.timeline import series_of
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.study.simulation.replay_trace import LoadedTrace
    from optsched.study.simulation.simulator import Options

CELLS: Final = "cells"
_PARTS: Final = {"metrics", "gpu_hours", "jobs"}


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with one file per cell, by key; None stores nothing."""

    folder: Path | None

    def load_result(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the complete result of a cell, or None."""
        if self.folder is None:
            return None
        try:
            found = json.loads(self._path(self.folder, cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(found, dict) and found.get("complete") is True and found.keys() >= _PARTS
        return found if whole else None

    def store_result(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Store a result atomically. Raises OSError; then the previous file stays."""
        if self.folder is None:
            return
        path = self._path(self.folder, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_json(result, indent=1))

    @staticmethod
    def _path(folder: Path, cell: Cell) -> Path:
        return folder / CELLS / f"{cell.key}.json"


@dataclass(frozen=True, eq=False)
class Cell:
    """One replay of a grid."""

    model: str
    trace: str  # the name of the trace in the grid; that of a synthetic one without its seed
    seed: int  # of a synthetic trace and of the solver
    given: LoadedTrace
    policy: Policy
    options: Options
    warm_up_ms: int

    @property
    def key(self) -> str:
        """The identity of the replay: a digest of everything that it depends on."""
        options = self.options
        parts = [
            __version__,
            self.given.sha256,
            fingerprint(self.policy),
            options.seed,
            options.period_ms,
            options.until_ms,
            self.warm_up_ms,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    @property
    def name(self) -> str:
        """The name that users see."""
        return f"{self.model} on {self.trace}, seed {self.seed}"

    def played(self, clock: Clock) -> dict[str, Any]:
        """Replay the cell; return its metrics and series as JSON."""
        given, policy, options, warm_up_ms = self.given, self.policy, self.options, self.warm_up_ms
        with solver_of(policy) as solver:
            played = play(given, policy, options, warm_up_ms=warm_up_ms, solver=solver, clock=clock)
        result = as_result(given, policy, options, warm_up_ms, played)
        result["jobs"] = columns_of(played.jobs)
        if played.timeline is not None:
            counted = (job.name for job in played.jobs)
            result["unfinished_reasons"] = reasons_of(played.timeline, counted)
            result["series"] = series_of(played.timeline)
        return result


def cells_of(
    policies: Mapping[str, Policy],
    given: Mapping[tuple[str, int], LoadedTrace],
    options: Options,
    warm_up_ms: int = 0,
) -> list[Cell]:
    """Return cells by model, trace and seed, in this order; `given` is from `read_traces`."""
    return [
        Cell(model, trace, seed, found, policy, replace(options, seed=seed), warm_up_ms)
        for model, policy in policies.items()
        for (trace, seed), found in given.items()
    ]


def seeded(source: str, seed: int) -> str:
    """Return the name of a synthetic trace with the seed, unless it names one."""
    if not source.startswith(SYNTHETIC) or "seed=" in source:
        return source
    comma = "" if source == SYNTHETIC else ","
    return f"{source}{comma}seed={seed}"


def read_traces(
    sources: Sequence[str], seeds: Sequence[int], trace_format: str | None, nodes: Path | None
) -> dict[tuple[str, int], LoadedTrace]:
    """Return traces by source and seed; a trace without a seed is read once.

    Raises `InstanceError` or `SyntheticError` for one that can not be read.
    """
    by_name: dict[str, LoadedTrace] = {}
    found = {}
    for source in sources:
        for seed in seeds:
            name = seeded(source, seed)
            if name not in by_name:
                by_name[name] = read_given(name, trace_format, nodes)
            found[source, seed] = by_name[name]
    return found
