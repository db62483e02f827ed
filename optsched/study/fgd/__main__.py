"""`python -m optsched.study.fgd POD_LIST...`: compare a search, FGD and a bound."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.study.fgd.reachable_allocation import (
    BATCHES,
    allocate_offline,
    allocate_online,
    allocate_with_moves,
    build_experiment,
)
from optsched.study.fgd.workload import read_workload
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOVED: Final = 1
"""Maximum percentage of the pods placed by FGD that may move (table column "moved")."""

_COLUMNS: Final = ("offline", "bound", "FGD", "moved", *(f"by {size}" for size in BATCHES))


def _print_row(name: str, cells: Iterable[str], width: int) -> None:
    """Print and flush a table row, because the next row may take minutes."""
    line = " ".join([name.ljust(width), *(cell.rjust(7) for cell in cells)])
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code: 0, or 2 for invalid input."""
    parser = argparse.ArgumentParser(prog="python -m optsched.study.fgd", description=__doc__)
    parser.add_argument("lists", nargs="+", type=Path, metavar="POD_LIST", help="CSV of openb pods")
    parser.add_argument(
        "--nodes", type=Path, help="CSV of nodes; default: the node list next to the pod list"
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the arrivals")
    parser.add_argument(
        "--runs", type=int, default=1, help="number of searches; the median result is printed"
    )
    parser.add_argument("--seconds", type=float, default=120, help="CPU time of each search")
    given = parser.parse_args(arguments)
    num_runs, width = max(given.runs, 1), max(len(path.stem) for path in given.lists)
    try:
        _print_row("list", _COLUMNS, width)
        for path in given.lists:
            workload, problems = read_workload(path, given.nodes)
            sys.stderr.writelines(f"{printable(str(problem))}\n" for problem in problems)
            experiment = build_experiment(workload, given.seed)
            runs = [
                allocate_offline(experiment, time.process_time, given.seconds, i)
                for i in range(num_runs)
            ]
            reached = median(run.reached for run in runs)
            few, _ = allocate_with_moves(experiment, _MOVED, time.process_time, given.seconds)
            numbers = (
                reached,
                runs[0].bound,
                runs[0].fgd,
                few,
                *allocate_online(experiment).values(),
            )
            _print_row(path.stem, (f"{number:.2f}" for number in numbers), width)
    except InstanceError as e:
        message = printable(str(e), keep="\n")
        sys.stderr.write(f"{message}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
