"""Tests of the output, files and exit codes of `optsched solve` for machine reassignment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from optsched.cli.main import main
from optsched.cli.offline import reassignment_command as reassign
from optsched.study.reassignment.reassignment_problem import cost_of, wrong_with
from optsched.study.reassignment.roadef import read_reassignment
from optsched.study.reassignment.solve_reassignment import quick_reassignment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from click.testing import Result

MODEL = Path(__file__).parents[2] / "instances" / "examples" / "model_small.txt"


def solve(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["solve", *map(str, arguments)])


def test_a_table_and_an_assignment(tmp_path: Path) -> None:
    out = tmp_path / "new.txt"
    result = solve(MODEL, "--steps", 100, "--out", out)
    assert result.exit_code == 0
    rows = {line[:16].strip(): line[16:].split() for line in result.stdout.splitlines()}
    problem = read_reassignment(MODEL, out)
    assert wrong_with(read_reassignment(MODEL), problem.initial) == []
    cost = cost_of(read_reassignment(MODEL), problem.initial)
    assert rows["cost"][1] == str(cost.total)
    assert rows["load"][1] == str(cost.load)
    assert rows["services moved"] == ["0", str(cost.service_moves)]


def test_a_file_for_programs(tmp_path: Path) -> None:
    out, start = tmp_path / "new.json", tmp_path / "first.txt"
    start.write_text("2 1 0")
    result = solve(MODEL, "--assignment", start, "--steps", 100, "--out", out, "-o", "json")
    assert result.exit_code == 0
    assert result.stdout == out.read_text()
    found = json.loads(result.stdout)
    cost = cost_of(read_reassignment(MODEL, start), found["machines"])
    assert found["result"]["cost"] == cost.total == sum(found["result"]["parts"].values())
    assert found["result"]["parts"]["processMoves"] == cost.process_moves
    assert found["result"]["bound"] <= cost.total
    assert found["made"]["steps"] == 100
    assert (found["kind"], found["instance"]["processes"]) == ("Reassignment", 3)


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    start = tmp_path / "first.txt"
    start.write_text("0 0 0")
    result = solve(MODEL, "--assignment", start)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "2 processes of service 0 share machine 0" in result.stderr
    large = tmp_path / "model_large.txt"
    large.write_text(MODEL.read_text().replace("1 10 100\n", "1 10 1000000000000000000\n"))
    (tmp_path / "assignment_large.txt").write_text("0 1 0")
    result = solve(large)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "costs may reach 2**53" in result.stderr
    result = solve(MODEL, "--time-limit", 0, "--out", tmp_path)
    assert result.exit_code == 2


def test_stopped_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(workers: object, problem: object, effort: object) -> Iterator[object]:
        yield quick_reassignment(problem)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(reassign, "reassignments", stopped)
    result = solve(MODEL)
    assert result.exit_code == 130
    assert "stopped by hand" in result.stdout
