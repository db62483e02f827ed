"""Tests of `optsched solve` results: models, gaps, progress, files, stopping and resuming."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from optsched.cli.base.path_arguments import WriteError, check_writable, write_text
from optsched.cli.main import main
from optsched.cli.offline import solve_model as solving
from optsched.cli.offline.solve_display import format_progress
from optsched.cluster.decisions import Progress
from optsched.formats.solve_result import SolveResult, checksum, read_result
from tests.support.disk import full

if TYPE_CHECKING:
    from click.testing import Result

PACKING = Path(__file__).parents[2] / "instances" / "examples" / "packing.yaml"
COMMAND = "from optsched.cli.main import main; main()"
SECOND = ("--model", "volcano-default", "--model", "volcano-compatible")


def solve(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["solve", *map(str, arguments)])


def result_at(path: Path) -> SolveResult:
    result, errors = read_result(path.read_text("utf-8"))
    assert errors == ()
    assert result is not None
    return result


# --- several models ------------------------------------------------------------------------------


def test_several_models_are_compared_with_the_first(tmp_path: Path) -> None:
    result = solve(PACKING, *SECOND, "--out", tmp_path / "plans", "--result", tmp_path / "results")
    assert result.exit_code == 0
    first, second = result.stdout.split("model volcano-compatible\n")
    assert first.startswith("model volcano-default\n")
    rows = {
        line[:19].strip(): line[19:].split() for line in second.split("\nmodels")[1].split("\n")
    }
    assert rows["figure"] == ["volcano-default", "volcano-compatible", "Δ"]
    assert rows["gangs started"] == ["3", "2", "−1"]
    assert rows["pods placed"] == ["4", "3", "−1"]
    assert rows["victims"] == ["0", "0", "="]
    assert rows["allocation"] == ["100.0", "%", "68.8", "%", "−31.2", "%"]
    for folder in ("plans", "results"):
        names = sorted(p.name for p in (tmp_path / folder).iterdir())
        assert names == ["volcano-compatible.json", "volcano-default.json"]
    kept = result_at(tmp_path / "results" / "volcano-compatible.json")
    assert (kept.model.name, kept.parameters.solver) == ("volcano-compatible", "none")


def test_a_model_counts_once() -> None:
    result = solve(PACKING, "--model", "volcano-default", "--model", "volcano-default")
    assert result.exit_code == 2
    assert result.stderr == "--model volcano-default: is given twice; give each model once\n"


def test_models_of_one_name_are_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text((PACKING.parents[2] / "models" / "volcano-default.yaml").read_text())
    result = solve(PACKING, "--model", "volcano-default", "--model", copy)
    assert result.exit_code == 2
    text = "has the same name as volcano-default: volcano-default; give each name once"
    assert text in result.stderr


def test_a_file_is_no_folder_for_several_models(tmp_path: Path) -> None:
    taken = tmp_path / "plan.json"
    taken.write_text("mine")
    result = solve(PACKING, *SECOND, "--out", taken)
    assert result.exit_code == 4
    assert f"{taken}: cannot be created: File exists; several models need" in result.stderr
    assert "nothing was solved" in result.stderr
    assert taken.read_text() == "mine"


# --- results -------------------------------------------------------------------------------------


def test_a_result_says_what_made_it(tmp_path: Path) -> None:
    out, kept = tmp_path / "plan.json", tmp_path / "result.json"
    given = ("--gap", "1%", "--seed", 7, "--time-limit", 5)
    assert solve(PACKING, *given, "--out", out, "--result", kept).exit_code == 0
    result = result_at(kept)
    assert result.plan_sha256 == checksum(out.read_bytes())
    assert [f.sha256 for f in result.instance.files] == [checksum(PACKING.read_bytes())]
    assert (result.parameters.gap, result.parameters.seed) == (0.01, 7)
    assert result.parameters.time_limit_s == 5
    assert not result.is_partial
    assert result.progress[-1].level == "node score"
    assert "engine: cpsat" in result.model.text
    again = CliRunner().invoke(main, list(result.command[1:]))
    assert again.exit_code == 0


def test_json_is_printed_and_nothing_else() -> None:
    one = json.loads(solve(PACKING, "--deterministic", "-o", "json").stdout)
    assert (one["kind"], one["ended"]) == ("SolveResult", "complete")
    two = json.loads(solve(PACKING, "--deterministic", "-o", "json", *SECOND).stdout)
    assert (two["kind"], len(two["items"])) == ("SolveResultList", 2)
    assert two["items"][0] == one


def test_two_deterministic_results_are_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in files:
        solve(PACKING, "--deterministic", "--seed", 3, "--result", path, "--progress")
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("gap", ["-1", "100%", "much", "nan", "1"])
def test_what_is_no_gap_is_refused(gap: str) -> None:
    result = solve(PACKING, "--gap", gap)
    assert result.exit_code == 2
    assert f"'{gap}' is not a gap: write a fraction such as 0.01, or 1%" in result.stderr


# --- progress ------------------------------------------------------------------------------------


def test_progress_is_a_line_for_everything_new_and_silent_otherwise() -> None:
    result = solve(PACKING, "--progress")
    lines = [line for line in result.stderr.split("\n") if line.startswith("volcano-default: ")]
    assert "admission, priority 0, incumbent 16, bound 16, gap 0.00 %" in "\n".join(lines)
    assert len(lines) >= 5
    assert solve(PACKING).stderr == ""


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("a", 1.0, None, None), "a, no plan yet, no bound yet, 1.00 s"),
        (Progress("a", 1.0, 0, 999), "a, incumbent 0, bound 999, gap above 1000 %, 1.00 s"),
        (
            Progress("a", 0.25, 1000, 1010, 2),
            "a (2), incumbent 1,000, bound 1,010, gap 1.00 %, 0.25 s",
        ),
    ],
)
def test_progress_says_what_is_known(progress: Progress, text: str) -> None:
    assert format_progress(progress) == text


# --- going on ------------------------------------------------------------------------------------


def test_a_solve_goes_on_from_a_result(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    first = solve(PACKING, "--time-limit", 0, "--result", kept)
    assert "(partial: limit)" in first.stderr
    assert result_at(kept).is_partial
    before = result_at(kept).progress
    assert solve(PACKING, "--resume", kept, "--result", kept).exit_code == 0
    after = result_at(kept)
    assert not after.is_partial
    assert after.progress[: len(before)] == before
    last = solve(PACKING, "--resume", kept)
    assert "stopped: proved before" in last.stdout


def test_another_instance_is_no_ground_to_go_on(tmp_path: Path) -> None:
    kept, other = tmp_path / "result.json", tmp_path / "other.yaml"
    solve(PACKING, "--result", kept)
    other.write_text(PACKING.read_text() + "\n")
    result = solve(other, "--resume", kept)
    assert result.exit_code == 2
    assert f"{kept}: instance.sha256: " in result.stderr
    assert "omit --resume" in result.stderr
    result = solve(PACKING, "--resume", kept, "--model", "drf-lexicographic")
    assert result.exit_code == 2
    assert f"{kept}: model.sha256: " in result.stderr


def test_several_models_go_on_from_a_folder_or_nothing_is_solved(tmp_path: Path) -> None:
    given = (*SECOND, "--result", tmp_path, "--deterministic")
    assert solve(PACKING, *given).exit_code == 0
    assert solve(PACKING, *given, "--resume", tmp_path).exit_code == 0
    (tmp_path / "volcano-compatible.json").unlink()
    result = solve(PACKING, *given, "--resume", tmp_path)
    assert result.exit_code == 2
    assert "volcano-compatible.json: cannot be read: No such file" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("{}", "kind is missing"),
        ('{"kind": "Plan"}', 'kind: "Plan" is not one of SolveResult'),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, says: str) -> None:
    kept = tmp_path / "result.json"
    kept.write_text(text)
    result = solve(PACKING, "--resume", kept)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{kept}: ")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- files that cannot be written ---------------------------------------------------------------


def test_a_folder_that_is_not_there_is_told_before_anything_is_solved(tmp_path: Path) -> None:
    result = solve(PACKING, "--result", tmp_path / "none" / "result.json")
    assert result.exit_code == 4
    assert "No such file or directory; nothing was solved" in result.stderr
    assert result.stdout == ""


def test_a_full_disk_costs_neither_the_plan_nor_the_exit_code() -> None:
    result = solve(PACKING, "--result", "/dev/full")
    assert result.exit_code == 4
    assert "proved: no plan is better" in result.stdout
    assert "/dev/full: cannot be written: No space left on device" in result.stderr


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteError, match=r"No space left on device; the previous file is kept"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(WriteError, match="is a folder"):
        check_writable(tmp_path)


def test_solving_goes_on_where_nothing_can_be_kept_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, _: str) -> None:
        raise WriteError(f"{path}: cannot be written")

    monkeypatch.setattr(solving, "write_text", fails)
    result = solve(PACKING, "--result", tmp_path / "r.json")
    assert result.exit_code == 0
    assert result.stderr.count("solving continues") == 1
    assert not result_at(tmp_path / "r.json").is_partial


# --- stopping ------------------------------------------------------------------------------------


def hard(path: Path) -> None:
    """Write an instance that no solver finishes during a test: six nodes for sixty pods."""
    random = Random(0)
    room = {"cpu": "97", "memory": "389Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{i}"},
            "status": {"allocatable": room, "capacity": room, "conditions": ready},
        }
        for i in range(6)
    ]
    for i in range(60):
        asks = {"cpu": str(random.randint(7, 31)), "memory": f"{random.randint(20, 140)}Gi"}
        container = {"name": "c", "image": "i", "resources": {"requests": asks}}
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{i:02}", "namespace": "ns"},
                "spec": {"schedulerName": "optsched", "containers": [container]},
                "status": {"phase": "Pending"},
            }
        )
    path.write_text(yaml.safe_dump_all(objects))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_who_stops_it_finds_what_there_was(tmp_path: Path, number: int, code: int) -> None:
    instance, kept = tmp_path / "hard.yaml", tmp_path / "result.json"
    hard(instance)
    words = [instance, "--time-limit", 20, "--result", kept, "--progress"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "solve", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # A tenth of the time goes to a first search, which the result does not contain.
    recorded = (line for line in process.stderr if "(first search)" not in line)
    seen = [line for line, _ in zip(recorded, range(6), strict=False)]
    assert len(seen) == 6, seen
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == code
    result = result_at(kept)
    assert result.is_partial
    assert len(result.incumbents[0].binds) > 20
    if number == signal.SIGKILL:
        assert (result.ended, result.plan) == ("running", None)
    else:
        assert "stopped: interrupted" in stdout
        assert result.ended == "interrupted"
        assert result.plan is not None
        assert len(result.plan.binds) > 20
    again = solve(instance, "--time-limit", 0, "--resume", kept, "--out", tmp_path / "plan.json")
    assert again.exit_code == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["certificate"]["levels"][0]["value"] >= result.incumbents[0].levels[0].value
