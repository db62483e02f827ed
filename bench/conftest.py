"""The yardstick of all benchmarks, and the table of their results."""

from __future__ import annotations

import os
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.memory import forget_peak, peak_mib
from optsched.solver.cpsat.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


def yardstick() -> float:
    """Return the median seconds of five runs of a fixed task in Python and NumPy."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, 200_000)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        total: dict[int, int] = {}
        for value in values[:100_000].tolist():
            total[value] = total.get(value, 0) + 1
        for _ in range(20):
            np.sort(values)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@dataclass(frozen=True)
class Row:
    """One result: its name, the measured and the target time in seconds, and the peak memory."""

    name: str
    seconds: float
    memory_mib: float
    target: float | None
    note: str


class Table:
    """The results of all benchmarks of a run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, name: str, seconds: float, target: float | None = None, note: str = "") -> None:
        self.rows.append(Row(name, seconds, peak_mib(os.getpid()), target, note))


_TABLE = Table()


@pytest.fixture(autouse=True)
def _memory() -> None:
    """Reset the peak memory before each benchmark."""
    forget_peak()


@pytest.fixture(scope="session")
def table() -> Table:
    """The table to which benchmarks add their results."""
    return _TABLE


@pytest.fixture(scope="session")
def solver() -> Iterator[WorkerProcess]:
    """One solver process for all benchmarks, started before any timing."""
    worker = WorkerProcess()
    assert worker.wait_until_ready()
    yield worker
    worker.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results relative to the yardstick of the same run."""
    if not _TABLE.rows:
        return
    unit = yardstick()
    write = terminalreporter.write_line
    write("")
    write(f"yardstick {unit * 1000:.1f} ms (a fixed piece of Python and NumPy, median of five)")
    write(f"{'':60} {'median s':>9} {'× yardstick':>12} {'peak MiB':>9} {'target s':>9}")
    for row in _TABLE.rows:
        target = "" if row.target is None else f"{row.target:9.2f}"
        met = "" if row.target is None else (" ok" if row.seconds <= row.target else " MISSED")
        ratio = row.seconds / unit
        figures = f"{row.seconds:9.3f} {ratio:12.2f} {row.memory_mib:9.0f} {target:>9}{met}"
        write(f"{row.name:60} {figures} {row.note}")
    peak = max(row.memory_mib for row in _TABLE.rows)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    write(
        f"peak memory {peak:.0f} MiB here, {children:.0f} MiB in the solver process (target 2 048)"
    )
