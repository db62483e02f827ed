"""Tests of the output, files and exit codes of `optsched simulate`."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.study.simulation.simulator import Simulation
from tests.support.disk import fill_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from optsched.study.simulation.record import Event

ROOT = Path(__file__).parents[2]
FAILURES = ROOT / "instances" / "traces" / "failures.yaml"
PACKING = ROOT / "instances" / "examples" / "packing.yaml"
SMALL = "gavel:jobs=12,nodes=1,load=1.2,seed=4"


def simulate(*arguments: object, model: str = "volcano-compatible") -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments), "--model", model])


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_it_prints_what_came_of_a_trace() -> None:
    result = simulate(FAILURES)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["jobs", "finished", "4", "of", "4"] in rows
    assert ["makespan", "12h30m"] in rows
    assert ["preemptions", "1"] in rows
    assert ["stopped", "by", "nodes", "1"] in rows


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_strict_replays_nothing_of_a_trace_with_a_mistake(command: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text(FAILURES.read_text().replace("tasks: 8", "tasks: 1.5", 1))
    assert path.read_text() != FAILURES.read_text()
    out = tmp_path / "out"
    given = [command, str(path), "--model", "volcano-compatible", "--out", str(out)]
    result = CliRunner().invoke(main, [*given, "--strict"])
    assert (result.exit_code, result.stdout, out.exists()) == (2, "", False)
    refusal, mistake = result.stderr.splitlines()[:2]
    assert refusal == "nothing is replayed: --strict rejects 1 error:"
    assert "tasks" in mistake
    assert "1.5" in mistake
    assert CliRunner().invoke(main, given).exit_code == 0
    whole = [command, str(FAILURES), "--model", "volcano-compatible", "--strict"]
    assert CliRunner().invoke(main, whole).exit_code == 0


def test_one_job_on_one_node_is_no_plural() -> None:
    first = simulate("gavel:jobs=1,nodes=1").stdout.splitlines()[0]
    assert ": 1 job on 1 node, model volcano-compatible" in first


def test_the_result_says_all_that_is_needed_to_get_it_again(tmp_path: Path) -> None:
    result = simulate(FAILURES, "--out", tmp_path, "-o", "json", "--warm-up", "10m", "--seed", 7)
    found = json.loads(result.stdout)
    assert found == result_of(tmp_path)
    assert found["complete"] is True
    assert found["parameters"] == {
        "period_ms": 1000,
        "until_ms": None,
        "warm_up_ms": 600_000,
        "seed": 7,
    }
    assert found["trace"]["source"] == str(FAILURES)
    assert len(found["trace"]["sha256"]) == len(found["model"]["sha256"]) == 64
    assert found["metrics"]["jobs"] == 3
    assert {"optsched", "python", "numpy", "ortools"} <= set(found["versions"])


def test_two_runs_write_the_same_record(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        assert simulate(SMALL, "--out", folder).exit_code == 0
    first, again = (folder.joinpath("record.jsonl").read_bytes() for folder in folders)
    assert first == again
    digests = {result_of(folder)["record"]["sha256"] for folder in folders}
    assert len(digests) == 1


def test_it_goes_on_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert simulate(SMALL, "--out", whole).exit_code == 0
    step, left = Simulation.step, [5]

    def interrupted(self: Simulation) -> list[Event] | None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(Simulation, "step", interrupted)
    stopped = simulate(SMALL, "--out", parts)
    assert stopped.exit_code == 130
    assert "--resume" in stopped.stderr
    assert result_of(parts)["complete"] is False
    assert simulate(SMALL, "--out", parts, "--resume").exit_code == 0
    for name in ("record.jsonl",):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert result_of(whole)["metrics"] | {"session_s": 0} == result_of(parts)["metrics"] | {
        "session_s": 0
    }


def test_it_goes_on_from_a_checkpoint_that_was_overtaken(tmp_path: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert simulate(SMALL, "--out", whole, "--checkpoint", 20).exit_code == 0
    assert simulate(SMALL, "--out", again, "--checkpoint", 20).exit_code == 0
    assert simulate(SMALL, "--out", again, "--checkpoint", 20, "--resume").exit_code == 0
    first, second = (folder.joinpath("record.jsonl").read_bytes() for folder in (whole, again))
    assert first == second


def test_a_checkpoint_is_of_one_replay_only(tmp_path: Path) -> None:
    assert simulate(SMALL, "--out", tmp_path, "--checkpoint", 5).exit_code == 0
    other = simulate(SMALL, "--out", tmp_path, "--resume", "--period", "7s")
    assert other.exit_code == 1
    assert "belongs to another replay: period_ms differs" in other.stderr
    missing = simulate(SMALL, "--out", tmp_path / "nothing", "--resume")
    assert "there is no checkpoint to resume from" in missing.stderr
    assert simulate(SMALL, "--resume").exit_code == 2


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    assert simulate(FAILURES, "--out", tmp_path, "--checkpoint", 5).exit_code == 0
    path = tmp_path / "checkpoint.json"
    kept = json.loads(path.read_text())
    kept["state"]["version"] = 1
    path.write_text(json.dumps(kept))
    result = simulate(FAILURES, "--out", tmp_path, "--checkpoint", 5, "--resume")
    assert result.exit_code == 1
    assert (
        f"{path}: was written by another version of optsched: replay without --resume"
        in result.stderr
    )


def test_a_full_disk_leaves_what_was_written_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").symlink_to("/dev/full")
    result = simulate(SMALL, "--out", tmp_path)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert "marked as incomplete" in result.stderr
    assert result_of(tmp_path)["complete"] is False


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """Limit the size of files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_an_event_is_cut_off_where_the_disk_is_full(tmp_path: Path) -> None:
    assert simulate(SMALL, "--out", tmp_path / "whole").exit_code == 0
    whole = (tmp_path / "whole" / "record.jsonl").read_bytes()
    size = len(result_of(tmp_path / "whole").__repr__()) * 2
    trace = SMALL.replace("jobs=12", "jobs=60")
    with small_disk(max(size, len(whole))):
        result = simulate(trace, "--out", tmp_path / "cut")
    assert result.exit_code == 1
    record = (tmp_path / "cut" / "record.jsonl").read_text()
    assert f"{tmp_path / 'cut' / 'record.jsonl'}: File too large" in result.stderr
    assert (
        f"the first {record.count(chr(10))} events are kept; the replay is marked" in result.stderr
    )
    assert record.endswith("}\n")
    assert {"at", "event"} <= json.loads(record.splitlines()[-1]).keys()
    found = result_of(tmp_path / "cut")
    assert found["complete"] is False
    assert found["record"]["sha256"] == hashlib.sha256(record.encode()).hexdigest()


@pytest.mark.parametrize("name", ["result.json", "gpu-hours.csv", "checkpoint.json"])
def test_a_full_disk_is_told_by_file_and_leaves_no_whole_result(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert simulate(SMALL, "--out", tmp_path).exit_code == 0
    there = {path.name for path in tmp_path.iterdir()}
    fill_for(monkeypatch, name)
    result = simulate(SMALL, "--out", tmp_path, "--checkpoint", 5)
    assert result.exit_code == 1
    assert f"{tmp_path / name}: No space left on device" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {*there, "checkpoint.json"}
    assert "Traceback" not in result.output


def test_what_lies_there_is_marked_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(self: Simulation) -> list[Event] | None:
        raise SystemExit(9)

    assert simulate(SMALL, "--out", tmp_path).exit_code == 0
    assert result_of(tmp_path)["complete"] is True
    monkeypatch.setattr(Simulation, "step", dies)
    assert simulate(SMALL, "--out", tmp_path).exit_code == 9
    assert result_of(tmp_path)["complete"] is False


def test_a_full_disk_behind_the_standard_output_is_told() -> None:
    code = "from optsched.cli.main import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "simulate", str(FAILURES), "-o", "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert "Error: standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_what_is_wrong_with_a_trace_is_told_with_file_and_line(tmp_path: Path) -> None:
    text = (
        FAILURES.read_text()
        .replace("tasks: 16", "tasks: 99")
        .replace("duration: 45m", "duration: -1m")
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    result = simulate(broken)
    assert result.exit_code == 0
    line = text.splitlines().index("- name: research/pretrain") + 1
    told = f"broken.yaml:{line}: Gang research/pretrain: minAvailable: 99 can never start"
    assert told in result.stderr
    assert "Gang teaching/late: duration: -1m0s is below zero" in result.stderr
    assert "jobs finished" in result.stdout
    assert "2 of 2" in result.stdout


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("nowhere.yaml", "there is no such file or folder"),
        ("gavel:jobs=many", "jobs: 'many' is not a whole number"),
        ("gavel:jobs=0", "jobs: 0 is out of range: write a whole number from 1"),
        ("gavel:speed=3", "speed is not one of jobs, nodes, load"),
    ],
)
def test_bad_input_ends_with_2(given: str, told: str) -> None:
    result = simulate(given)
    assert result.exit_code == 2
    assert told in result.stderr


def test_an_unknown_model_ends_with_2() -> None:
    result = simulate(SMALL, model="volcano-defualt")
    assert result.exit_code == 2
    assert "volcano-default" in result.stderr


def test_manifests_are_played_as_they_stand() -> None:
    result = simulate(PACKING, "-o", "json")
    metrics = json.loads(result.stdout)["metrics"]
    assert (metrics["jobs"], metrics["started"], metrics["finished"]) == (4, 2, 0)


def test_it_stops_when_it_is_told_to() -> None:
    result = simulate(FAILURES, "--until", "1h", "-o", "json")
    found = json.loads(result.stdout)
    assert found["metrics"]["jobs"] == 2
    assert found["ended_at_ms"] < 3_600_000


def test_a_report_is_written_for_people(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert simulate(FAILURES, "--report", target).exit_code == 0
    text = target.read_text("utf-8")
    assert "<h1>Replay of failures</h1>" in text
    assert "research/pretrain" in text


def test_a_report_goes_on_after_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.html", tmp_path / "parts.html"
    assert simulate(SMALL, "--report", whole).exit_code == 0
    step, left = Simulation.step, [9]

    def interrupted(self: Simulation) -> list[Event] | None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    monkeypatch.setattr(Simulation, "step", interrupted)
    out = tmp_path / "out"
    assert simulate(SMALL, "--out", out, "--report", parts).exit_code == 130
    assert "Incomplete: the replay was stopped" in parts.read_text("utf-8")
    assert simulate(SMALL, "--out", out, "--resume", "--report", parts).exit_code == 0
    assert chart_of(parts) == chart_of(whole)


def chart_of(page: Path) -> str:
    return page.read_text("utf-8").partition('id="nodes"')[2].partition('id="usage"')[0]


def test_a_report_that_can_not_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no folder" in simulate(FAILURES, "--report", tmp_path / "no" / "a.html").stderr

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = simulate(FAILURES, "--report", tmp_path / "a.html")
    assert result.exit_code == 1
    assert "a.html: No space left on device; the report was not written" in result.stderr
    assert "makespan" in result.stdout
    assert list(tmp_path.iterdir()) == []
