"""`python -m optsched.study.fgd POD_LIST...`: compare GPU allocation with FGD and a bound."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from optsched.formats.files.diagnostics import InstanceError
from optsched.study.fgd.reachable_allocation import BATCHES, offline, online, scene, with_moves
from optsched.study.fgd.workload import read_workload
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOVED: Final = 1
"""Percentage of the pods placed by FGD that may move, for the column "moved"."""

_HEAD: Final = ("list", "offline", "bound", "FGD", "moved", *(f"by {size}" for size in BATCHES))


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of the command line."""

    lists: tuple[Path, ...]
    nodes: Path | None
    seed: int
    seconds: float
    runs: int


def lines(given_arguments: Arguments) -> Iterator[str]:
    """Yield the table header and one row per pod list, each row as soon as it is computed.

    Raises InstanceError if a pod list or the node list is invalid.
    """
    width = max(len(path.stem) for path in given_arguments.lists)
    yield _row(_HEAD, width)
    for path in given_arguments.lists:
        workload, problems = read_workload(path, given_arguments.nodes)
        sys.stderr.writelines(f"{printable(str(problem))}\n" for problem in problems)
        here = scene(workload, given_arguments.seed)
        runs = [
            offline(here, time.process_time, given_arguments.seconds, run)
            for run in range(given_arguments.runs)
        ]
        reached = median(run.reached for run in runs)
        few, _ = with_moves(here, _MOVED, time.process_time, given_arguments.seconds, 0)
        numbers = (reached, runs[0].bound, runs[0].fgd, few, *online(here).values())
        yield _row((path.stem, *(f"{number:.2f}" for number in numbers)), width)


def _row(cells: Sequence[str], width: int) -> str:
    first, *others = cells
    return " ".join([first.ljust(width), *(cell.rjust(7) for cell in others)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code: 0, or 2 for invalid input."""
    parser = argparse.ArgumentParser(prog="python -m optsched.study.fgd", description=__doc__)
    parser.add_argument("lists", nargs="+", type=Path, metavar="POD_LIST", help="CSV of openb pods")
    parser.add_argument("--nodes", type=Path, help="CSV of nodes; by default next to each pod list")
    parser.add_argument("--seed", type=int, default=42, help="seed of the arrivals")
    parser.add_argument(
        "--runs", type=int, default=1, help="number of searches; the median is printed"
    )
    parser.add_argument("--seconds", type=float, default=120, help="CPU time of each search")
    said = parser.parse_args(arguments)
    given_arguments = Arguments(
        tuple(said.lists), said.nodes, said.seed, said.seconds, max(said.runs, 1)
    )
    try:
        for line in lines(given_arguments):
            sys.stdout.write(f"{printable(line)}\n")
            sys.stdout.flush()
    except InstanceError as e:
        message = printable(str(e), keep="\n")
        sys.stderr.write(f"{message}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
