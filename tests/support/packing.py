"""Published instances of vector bin packing, with their known optima."""

from __future__ import annotations

import csv
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.study.packing.vbp import parse_vbp

if TYPE_CHECKING:
    from optsched.study.packing.packing_problem import VectorPacking


@dataclass(frozen=True)
class Case:
    """An instance with its optimum, if known, and the best result of the published heuristics."""

    problem: VectorPacking
    optimum: int | None
    heuristics: int


@cache
def published(folder: Path, family: str) -> list[Case]:
    """Return all instances of a family, such as `Panigrahy` or `New`, by name.

    `folder` contains the archive and the table, like a checkout of Vectorpack.
    """
    with tarfile.open(_only(folder, f"{family}_instances.tar.gz")) as archive:
        texts = {
            Path(member.name).stem: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
            if member.name.endswith(".vbp")
        }
    table = _only(folder, f"{family}_summary_known.csv").read_text().splitlines()
    rows = {row["instance_name"]: row for row in csv.DictReader(table, delimiter="\t")}
    return [
        Case(
            parse_vbp(text, name),
            int(rows[name]["OPT"]) if int(rows[name]["OPT"]) > 0 else None,
            int(rows[name]["best_overall"]),
        )
        for name, text in sorted(texts.items())
    ]


def _only(folder: Path, name: str) -> Path:
    for path in sorted(folder.rglob(name)):
        return path
    raise FileNotFoundError(f"{folder} has no {name}: take it from Vectorpack's repository")
