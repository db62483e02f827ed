"""Figures of docs/research.md agree with the instances, the tests and the recorded runs."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

import pytest

from bench.packing import RECORDED_OF_NEW
from optsched.study.reassignment.reassignment_problem import cost_of
from optsched.study.reassignment.roadef import read_reassignment
from tests.docs.test_guides import cells
from tests.study.reassignment.test_reassignment import BEST_PUBLISHED, REFERENCES
from tests.support.pages import ROOT
from tests.support.shared import shared

PAGE: Final = ROOT / "docs" / "research.md"
TEXT: Final = " ".join(PAGE.read_text("utf-8").split())
WORDS: Final = ("none", "one", "two", "three", "four", "five", "six", "seven")


def number_of(cell: str) -> int:
    return int(cell.replace(" ", ""))


def reassignments() -> dict[str, tuple[int, int, int, str]]:
    """Return the cost, the bound, the reference and the last cell of each instance, by name."""
    rows = [row for row in cells(PAGE) if row[0] in REFERENCES and len(row) == 6]
    return {row[0]: (*map(number_of, row[2:5]), row[5]) for row in rows}  # type: ignore[misc]


ROWS: Final = reassignments()


def first_cost(name: str) -> int:
    """Return the cost of an instance before any process is moved."""
    problem = read_reassignment(shared("traces", "roadef2012", f"model_{name}.txt"))
    return cost_of(problem, problem.initial).total


def test_references_are_those_that_the_search_is_measured_by() -> None:
    assert {name: reference for name, (_, _, reference, _) in ROWS.items()} == REFERENCES


@pytest.mark.parametrize("name", REFERENCES)
def test_costs_above_references_are_parts_of_the_first_cost(name: str) -> None:
    cost, bound, reference, told = ROWS[name]
    assert bound <= cost
    percent = 100 * Fraction(cost - reference, first_cost(name))
    shown = told.split(",")[0].removesuffix(" %").replace("−", "-")
    digits = len(shown.partition(".")[2])
    assert float(shown) == pytest.approx(float(percent), abs=0.51 / 10**digits)
    assert ("proved" in told) is (cost == bound)


def test_the_best_entry_of_the_challenge_is_compared_with_honestly() -> None:
    """If a published cost is lower, the page states the difference."""
    (name, best), (cost, *_) = *BEST_PUBLISHED.items(), ROWS["a2_2"]
    assert name == "a2_2"
    assert best < cost
    below = round(100 * (cost - best) / cost)
    part = round(100 * (cost - best) / first_cost(name), 1)
    assert (
        f"Entry S41 of the challenge, also within 300 s, reached a cost of {best // 10**6} million "
        f"on {name}: {below} % below the cost in the table. The difference between the "
        f"costs of S41 and of optsched is {part} % of the initial cost."
    ) in TEXT
    (early,) = re.findall(
        r"In 120 s, optsched's search reaches a cost of ([0-9 ]+); "
        r"the cost of entry S41 is 21 % lower\.",
        TEXT,
    )
    assert round(100 * (number_of(early) - best) / number_of(early)) == 21
    assert "optsched's search is clearly worse than the best entry of the challenge" in TEXT


def test_packings_of_the_third_set_are_those_of_the_record() -> None:
    of_new = RECORDED_OF_NEW
    assert (
        f"of {WORDS[of_new.instances]} instances that were tried in its classes "
        f"{of_new.classes}, {WORDS[of_new.found]} was packed into the optimal number of bins. For "
        f"{WORDS[of_new.bounded]} of the {WORDS[of_new.instances]} instances the bound equals "
        "the optimum"
    ) in TEXT


def test_classes_of_panigrahy_add_up() -> None:
    rows = [re.fullmatch(r"(\d+) of (\d+)", r[1]) for r in cells(PAGE) if r[0].startswith("class")]
    found = [tuple(map(int, row.groups())) for row in rows if row]
    (whole,) = [row for row in cells(PAGE) if "of Panigrahy" in row[0] and len(row) == 5]
    assert whole[1:3] == [str(sum(f for f, _ in found)), str(sum(f for f, _ in found))]
    assert whole[0].startswith(f"{sum(n for _, n in found)} of the 1 200")
