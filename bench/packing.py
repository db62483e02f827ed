"""Count the optima of Vectorpack's vector bin packing instances that optsched finds and proves.

Run `python -m bench.packing [--every 10] [--seconds 120] [--out packing.csv]`. It packs the
instances with a known optimum sequentially. Each instance has 120 s of CPU time, which is 60 s on
two cores. A run skips the instances that the file already contains. `--data FOLDER --family New
--class class2` packs one class of another set, from a checkout of
Vectorpack/experiments_vector_paper. The targets for Panigrahy's instances are 80 % found and 65 %
proved. The target for triplets of up to 120 items is 80 % found.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from optsched.study.packing.solve_packing import solve_packing
from tests.support.packing import Case, published
from tests.support.shared import shared


class Recorded(NamedTuple):
    """The numbers of instances, of optimal packings and of optimal bounds of some classes."""

    classes: str
    instances: int
    found: int
    bounded: int


RECORDED_OF_NEW: Final = Recorded("2 and 6", 7, 0, 6)
"""The results on Vectorpack's set New, which is not part of the test data."""

FIELDS = ("family", "instance", "optimum", "bins", "bound", "seconds", "found_by", "bound_by")


def known(family: str, folder: Path, of_class: str = "") -> list[Case]:
    """Return the instances with a known optimum, smaller instances first.

    If `of_class` is not empty, only instances of this class are returned.
    """
    found = [
        case
        for case in published(folder, family)
        if case.optimum is not None and of_class in ("", class_of(case.problem.name))
    ]
    return sorted(found, key=lambda c: (c.problem.num_items, c.problem.name))


def class_of(instance: str) -> str:
    """Return the class of an instance, which is the first part of its name."""
    return instance.partition("_")[0]


def measured(family: str, case: Case, seconds: float) -> dict[str, object]:
    """Pack one instance, check the result against the optimum, and return a row of the file."""
    start = time.process_time()
    result = solve_packing(case.problem, time.process_time, seconds)
    taken = round(time.process_time() - start, 2)
    assert case.optimum is not None
    assert result.bound <= case.optimum <= len(result.bins), case.problem.name
    values = (family, case.problem.name, case.optimum, len(result.bins), result.bound, taken)
    return dict(zip(FIELDS, (*values, result.found_by, result.bound_by), strict=True))


def main() -> None:
    """Pack the instances, store the rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="pack every n-th instance")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("packing.csv"))
    parser.add_argument("--data", type=Path, help="folder with Vectorpack's archives and tables")
    parser.add_argument("--family", action="append", help="default: Panigrahy and Triplet")
    parser.add_argument("--class", dest="of_class", default="", help="such as class2; default: all")
    options = parser.parse_args()
    rows = _read(options.out)
    done = {row["instance"] for row in rows}
    folder = options.data or shared("traces", "vbp")
    cases = [
        (family, case)
        for family in options.family or ("Panigrahy", "Triplet")
        for case in known(family, folder, options.of_class)[
            options.every * 7 // 10 :: options.every
        ]
    ]
    for family, case in cases:
        if case.problem.name not in done:
            row = measured(family, case, options.seconds)
            print(*row.values(), flush=True)
            rows.append({name: str(value) for name, value in row.items()})
            _write(options.out, rows)
    _table(rows)


def _read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _write(file: Path, rows: list[dict[str, str]]) -> None:
    part = file.with_suffix(".part")
    with part.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(file)


def _table(rows: list[dict[str, str]]) -> None:
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[class_of(row["instance"])].append(row)
        groups[row["family"]].append(row)
    print(f"{'class':10} {'found':>6} {'proved':>6} {'of':>6} {'s each':>7} {'s most':>7}")
    for name in sorted(groups):
        mine = groups[name]
        found = sum(row["bins"] == row["optimum"] for row in mine)
        proved = sum(row["bins"] == row["bound"] for row in mine)
        seconds = [float(row["seconds"]) for row in mine]
        mean = sum(seconds) / len(seconds)
        print(f"{name:10} {found:6} {proved:6} {len(mine):6} {mean:7.1f} {max(seconds):7.1f}")


if __name__ == "__main__":
    main()
