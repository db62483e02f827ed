"""Allocated GPUs by arrived demand, in the buckets and with the rounding of the published tables.

`experiments/analysis/merge_alloc_discrete.py` of the simulator, which works on pandas.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.problem.arrays import F64, I64
    from optsched.study.fgd.trace_replay import History

LAST: Final = 130
"""The last bucket: percent of all GPUs that have been asked for."""


def allocation_curves(history: History, total_milli: int) -> list[list[float]]:
    """For each run the mean percent of GPUs allocated while 0, 1, ... `LAST` percent had arrived.

    Both are percent of all GPUs. A bucket into which no arrival fell takes its two neighbours'.
    """
    return [
        _curve(history.arrived[run, :length], history.allocated[run, :length], total_milli)
        for run, length in enumerate(history.length.tolist())
    ]


def _curve(arrived: I64, allocated: I64, total_milli: int) -> list[float]:
    num_gpu = total_milli // 1000
    bucket = np.rint(arrived / num_gpu / 10)
    percent = np.array([round(a / num_gpu / 10, 2) for a in allocated.tolist()])
    return [_mean_percent(percent, bucket, at) for at in range(LAST + 1)]


def _mean_percent(percent: F64, bucket: F64, at: int) -> float:
    inside = percent[bucket == at]
    if not len(inside):
        inside = percent[np.abs(bucket - at) <= 1]
    return float(np.round(inside.mean(), 2))


def read_curves(table: Iterable[str]) -> dict[tuple[str, str, int], list[float]]:
    """Rows of `analysis_allo_discrete.csv` by pod list, policy and seed."""
    return {
        (row["workload"], row["sc_policy"], int(row["seed"])): [
            float(row[str(at)]) for at in range(LAST + 1)
        ]
        for row in csv.DictReader(table)
    }
