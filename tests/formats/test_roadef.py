"""The files, costs and rules of the ROADEF challenge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.study.reassignment.reassignment_problem import ReassignmentCost, cost_of, wrong_with
from optsched.study.reassignment.roadef import parse_reassignment, read_reassignment
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path

ORIGINAL = {
    "a1_1": 49528750,
    "a1_2": 1061649570,
    "a1_3": 583662270,
    "a1_4": 632499600,
    "a1_5": 782189690,
    "a2_1": 391189190,
    "a2_2": 1876768120,
    "a2_3": 2272487840,
    "a2_4": 3223516130,
    "a2_5": 787355300,
}
"""Published costs of the assignments from which the challenge starts."""


@pytest.mark.parametrize("name", ORIGINAL)
def test_the_published_costs_come_out(name: str) -> None:
    problem = read_reassignment(shared("traces", "roadef2012", f"model_{name}.txt"))
    cost = cost_of(problem, problem.initial)
    assert cost.total == ORIGINAL[name]
    assert cost.process_moves == cost.service_moves == cost.machine_moves == 0


MODEL = """2
1 10
0 100
3
0 0 30 400 16 80 0 1 4
0 1 10 240 8 160 1 0 3
1 2 15 100 12 80 4 3 0
2
2 0
1 1 0
3
0 12 10 1000
0 10 20 100
1 6 200 1
1
0 1 20
10
1 10 100
"""
START = "0 1 0"


def test_every_term_by_hand() -> None:
    problem = parse_reassignment(MODEL, START)
    used = [(18, 210), (10, 20), (0, 0)]
    load = 10 * ((18 - 16) + (10 - 8)) + 100 * (210 - 80)
    free = [(12, 190), (0, 220), (15, 100)]
    balance = 10 * ((20 * 12 - 190) + 0 + (20 * 15 - 100))
    assert cost_of(problem, problem.initial) == ReassignmentCost(load, balance, 0, 0, 0)
    assert [(30 - used[0][0], 400 - used[0][1]), free[1]] == free[:2]
    moved = cost_of(problem, [2, 1, 0])
    assert (moved.process_moves, moved.service_moves, moved.machine_moves) == (1000, 10, 400)
    assert moved.load == 10 * (10 - 8) + 100 * (200 - 80)
    assert moved.balance == 10 * ((20 * 24 - 200) + 0 + 0)


@pytest.mark.parametrize(
    ("machine_of", "wrong"),
    [
        ([0, 1, 0], []),
        ([2, 1, 0], []),
        ([0, 1, 1], ["machine 1 has 10 of resource 0; 16 are used"]),
        ([1, 0, 0], ["machine 1 has 10 of resource 0; 22 are used"]),
        ([0, 0, 0], ["2 processes of service 0 share machine 0"]),
        ([0, 1, 2], ["service 1 lacks service 0 in neighbourhood 1"]),
        ([0, 1], ["2 processes are assigned, 0 to unknown machines"]),
        ([0, 1, 3], ["3 processes are assigned, 1 to unknown machines"]),
    ],
)
def test_rules(machine_of: list[int], wrong: list[str]) -> None:
    """Resource 0 is transient: a moving process needs it on both machines."""
    found = wrong_with(parse_reassignment(MODEL, START), machine_of)
    assert [s for s in wrong if s not in found] == []
    assert bool(found) == bool(wrong)


def test_too_few_locations() -> None:
    near = MODEL.replace("0 1 10 240", "0 0 10 240")
    found = wrong_with(parse_reassignment(near, START), [0, 1, 0])
    assert found == ["service 0 runs in 1 locations; it needs 2"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("1 10 100\n", "1 10", "model:18: the file ends, but weight of machine is missing"),
        ("1 10 100\n", "1 10 100 7", "model:18: the end of the file: 7 is one number too many"),
        ("0 12 10 1000", "2 12 10 1000", "model:12: service of process 0: 2 is too large: write"),
        ("0 12 10 1000", "0 -2 10 1000", "model:12: request of process 0, resource 0: -2 is not a"),
        ("1 1 0\n", "1 1 9\n", "model:10: dependency of service 1, number 0: 9 is too large"),
        ("1 10\n0 100", "3 10\n0 100", "model:2: transient 0: 3 is too large: write 0 to 1"),
        ("3\n0 0", "x\n0 0", "model:4: number of machines: x is not a whole number"),
        (
            "0 12 10 1000",
            f"0 {'9' * 5000} 10 1000",
            "model:12: request of process 0, resource 0: 9",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, told: str) -> None:
    with pytest.raises(InstanceError) as error:
        parse_reassignment(MODEL.replace(old, new, 1), START)
    assert told in error.value.message


def test_assignments_are_looked_at(tmp_path: Path) -> None:
    model = tmp_path / "model_x.txt"
    model.write_text(MODEL)
    with pytest.raises(InstanceError, match="cannot be read"):
        read_reassignment(model)
    (tmp_path / "assignment_x.txt").write_text("0 1 3")
    with pytest.raises(InstanceError, match=r"assignment_x\.txt:1: machine of process 2: 3 is too"):
        read_reassignment(model)
    (tmp_path / "assignment_x.txt").write_text("0 0 0")
    with pytest.raises(
        InstanceError, match="the initial assignment is infeasible: 2 processes of service 0 share"
    ):
        read_reassignment(model)
    (tmp_path / "other.txt").write_text(START)
    assert read_reassignment(model, tmp_path / "other.txt").initial == (0, 1, 0)
