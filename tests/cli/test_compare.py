"""The output, files and exit codes of `optsched compare`, in this process and on Dask."""

from __future__ import annotations

import csv
import io
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.study.comparison import executors
from optsched.study.comparison.grid import Cell
from tests.support.disk import fill_for

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]
FAILURES = ROOT / "instances" / "traces" / "failures.yaml"
SMALL = "gavel:jobs=8,nodes=1,load=1.2,estimated=1"
TWO = ("--model", "volcano-compatible", "--model", "shortest-remaining", "--solver", "none")


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def here(*arguments: object) -> Result:
    return compare(*arguments, *TWO, "--workers", 0)


def rows_of(result: Result) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_models_are_compared_on_every_trace_and_seed() -> None:
    result = here(SMALL, FAILURES, "--seeds", "0-1", "-o", "csv")
    assert result.exit_code == 0, result.output
    assert [(r["model"], r["trace"], r["seed"]) for r in rows_of(result)] == [
        (model, trace, seed)
        for model in ("volcano-compatible", "shortest-remaining")
        for trace in (SMALL, str(FAILURES))
        for seed in "01"
    ]


def test_a_synthetic_trace_is_another_one_for_each_seed() -> None:
    result = here(SMALL, "--seeds", "0,1", "-o", "json")
    cells = json.loads(result.stdout)["cells"]
    assert len({cell["result"]["trace"]["sha256"] for cell in cells}) == 2
    fixed = here(SMALL + ",seed=5", "--seeds", "0,1", "-o", "json")
    cells = json.loads(fixed.stdout)["cells"]
    assert len({cell["result"]["trace"]["sha256"] for cell in cells}) == 1


def test_people_see_means_and_differences() -> None:
    result = here("gavel:jobs=24,nodes=2,load=1.2,estimated=1")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "means over 1 replay of each model"
    assert (
        "against volcano-compatible: paired, with simultaneous 95 % confidence intervals" in lines
    )
    assert lines[-1] == (
        "too few replays to call a model better or worse: 1 distinct trace of at least 6"
    )
    assert any(line.split()[:3] == ["shortest-remaining", "JCT", "mean"] for line in lines)


def test_where_nothing_differs_that_is_said() -> None:
    lines = here(FAILURES).stdout.splitlines()
    assert lines[-1] == "against volcano-compatible: nothing differs"


STARVED = """\
apiVersion: optsched.io/v1alpha1
kind: Trace
name: starved
nodes:
- {name: gpu, count: 4, allocatable: {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8}}
queues:
- {name: train, weight: 4}
- {name: dev, weight: 1}
jobs:
- {name: train/r, at: 0s, duration: 10h, queue: train, tasks: 3, request: {nvidia.com/gpu: 8}}
- {name: train/big, at: 5m, duration: 1h, queue: train, tasks: 2, request: {nvidia.com/gpu: 8}}
- {name: "train/[/b]", at: 6m, duration: 1h, queue: train, tasks: 2, request: {nvidia.com/gpu: 8}}
"""


def test_reasons_of_what_did_not_finish_are_named(tmp_path: Path) -> None:
    trace, out, page = tmp_path / "starved.yaml", tmp_path / "out", tmp_path / "page.html"
    trace.write_text(STARVED)
    result = here(trace, "--until", "7h", "--out", out, "--report", page)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if " unfinished: " in line]
    for model in ("volcano-compatible", "shortest-remaining"):
        [waiting, running] = [line for line in lines if line.startswith(model)]
        assert waiting.startswith(
            f"{model}: 2 jobs unfinished: NotEnoughResources, for example train/big: "
        )
        assert running == (
            f"{model}: 1 job unfinished: Running, for example train/r: "
            "still runs at the end of the replay"
        )
    cells = json.loads((out / "comparison.json").read_text())["cells"]
    for cell in cells:
        [waiting, _] = cell["result"]["unfinished_reasons"]
        assert waiting["gangs"] == 2
        assert waiting["waited_ms"] == cell["result"]["ended_at_ms"] - 5 * 60_000
        assert waiting["message"] in page.read_text("utf-8")


def test_unfinished_jobs_of_the_warm_up_are_kept(tmp_path: Path) -> None:
    trace, out = tmp_path / "starved.yaml", tmp_path / "out"
    trace.write_text(STARVED)
    assert here(trace, "--until", "7h", "--warm-up", "330s", "--out", out).exit_code == 0
    for cell in json.loads((out / "comparison.json").read_text())["cells"]:
        assert cell["result"]["unfinished_of_warm_up"] == ["train/r", "train/big"]
        assert cell["result"]["jobs"]["name"] == ["train/[/b]"]


def test_reasons_of_kept_results_without_any_are_left_out(tmp_path: Path) -> None:
    trace, out = tmp_path / "starved.yaml", tmp_path / "out"
    trace.write_text(STARVED)
    assert here(trace, "--until", "7h", "--out", out).exit_code == 0
    for path in (out / "cells").iterdir():
        kept = json.loads(path.read_text())
        del kept["unfinished_reasons"]
        path.write_text(json.dumps(kept))
    result = here(trace, "--until", "7h", "--out", out)
    assert "4 of 4" not in result.stderr
    assert " unfinished: " not in result.stdout
    assert result.exit_code == 0


EMPTY_TRACES = {
    "philly": "[]",
    "acme": "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration\n",
    "helios": "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,"
    "duration\n",
    "gavel": "",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n",
}
_NO_JOB = "there is no job to replay"
ONE_NODE = """\
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 8, memory: 8Gi, nvidia.com/gpu: 8, pods: 110}}
"""


@pytest.mark.parametrize("trace_format", EMPTY_TRACES)
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_trace_without_jobs_is_bad_input(tmp_path: Path, command: str, trace_format: str) -> None:
    trace, nodes = tmp_path / f"empty.{trace_format}", tmp_path / "nodes.yaml"
    trace.write_text(EMPTY_TRACES[trace_format])
    (tmp_path / "simulation_throughputs.json").write_text('{"v100": {}}')
    nodes.write_text(ONE_NODE)
    more = ("--model", "crater", "--workers", "0") if command == "compare" else ()
    asked = (command, trace, "--format", trace_format, "--nodes", nodes, *more)
    result = CliRunner().invoke(main, [*map(str, asked)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{trace}: {_NO_JOB}\n"


def test_manifests_without_jobs_are_bad_input(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(ONE_NODE)
    result = CliRunner().invoke(main, ["simulate", str(nodes)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{nodes}: there is no job to replay\n"


def test_what_was_played_is_kept_and_not_played_again(tmp_path: Path, monkeypatch) -> None:
    first = here(SMALL, "--out", tmp_path, "-o", "json")
    assert first.exit_code == 0, first.output
    assert json.loads((tmp_path / "comparison.json").read_text()) == json.loads(first.stdout)
    assert (tmp_path / "comparison.csv").read_text().count("\n") == 3
    played: list[str] = []
    play = Cell.played

    def counted(cell: Cell, clock: Any) -> dict[str, Any]:
        played.append(cell.name)
        return play(cell, clock)

    monkeypatch.setattr(Cell, "played", counted)
    again = here(SMALL, "--out", tmp_path, "-o", "json")
    assert (again.exit_code, again.stdout, played) == (0, first.stdout, [])
    assert "2 of 2 were already replayed" in again.stderr
    cells = sorted((tmp_path / "cells").iterdir())
    cells[0].write_text(cells[0].read_text()[:100])
    cells[1].write_text('{"complete": false, "metrics": {}}')
    assert here(SMALL, "--out", tmp_path, "-o", "json").exit_code == 0
    assert len(played) == 2
    # A comparison with another warm-up needs a new replay.
    assert here(SMALL, "--out", tmp_path, "--warm-up", "1h", "-o", "json").exit_code == 0
    assert len(played) == 4


def test_a_cell_that_fails_costs_no_other(tmp_path: Path, monkeypatch) -> None:
    play = Cell.played

    def fails(cell: Cell, clock: Any) -> dict[str, Any]:
        if cell.model == "shortest-remaining":
            raise RuntimeError("it broke")
        return play(cell, clock)

    monkeypatch.setattr(Cell, "played", fails)
    result = here(SMALL, "--out", tmp_path)
    assert result.exit_code == 1
    assert f"shortest-remaining on {SMALL}, seed 0: RuntimeError: it broke" in result.stderr
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert (found["complete"], len(found["cells"]), len(found["failures"])) == (False, 1, 1)
    assert result.stdout.splitlines()[0] == (
        "means over 1 replay of volcano-compatible, 0 replays of shortest-remaining: "
        "only the differences compare the same replays"
    )


def test_who_stops_it_keeps_what_was_played(tmp_path: Path, monkeypatch) -> None:
    play = Cell.played

    def stops(cell: Cell, clock: Any) -> dict[str, Any]:
        if cell.model == "shortest-remaining":
            raise KeyboardInterrupt
        return play(cell, clock)

    monkeypatch.setattr(Cell, "played", stops)
    result = here(SMALL, "--out", tmp_path)
    assert result.exit_code == 130
    assert "the same command resumes from the written results" in result.stderr
    assert len(list((tmp_path / "cells").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["gone.yaml", *TWO], 2, "gone.yaml: there is no such file or folder"),
        (["gavel:jobs=0", *TWO], 2, "jobs"),
        ([SMALL, "--model", "voclano-default"], 2, "did you mean `volcano-default`"),
        ([SMALL, *TWO, "--seeds", "1-x"], 2, "'1-x': write numbers or ranges, such as 0-4,7"),
        ([SMALL, *TWO, "--seeds", "4-1"], 2, "a range must end after it begins"),
        ([SMALL, *TWO, "--dask", "tcp://10.0.0.1:8786"], 2, "without TLS"),
        ([SMALL], 2, "the option --model is missing"),
        ([*TWO], 2, "the argument TRACES... is missing"),
    ],
)
def test_bad_input_is_told(arguments: list[str], code: int, said: str) -> None:
    result = compare(*arguments)
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("in the way")
    result = here(SMALL, "--out", tmp_path)
    assert result.exit_code == 1
    assert f"replayed, but the result was not written: {tmp_path / 'cells'}" in result.stderr
    assert "means over 1 replay of each model" in result.stdout


def test_a_full_disk_costs_nothing_that_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fill_for(patch, "comparison.json", "gpu-hours.csv")
        result = here(SMALL, "--out", tmp_path, "-o", "csv")
    assert result.exit_code == 1
    assert len(rows_of(result)) == 2
    for name in ("comparison.json", "gpu-hours.csv"):
        assert f"{tmp_path / name}: No space left on device" in result.stderr
        assert not (tmp_path / name).exists()
    assert (tmp_path / "comparison.csv").exists()
    assert here(SMALL, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "comparison.json").exists()


# --- on Dask -------------------------------------------------------------------------------------


def test_nobody_who_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_S", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = compare(SMALL, *TWO, "--dask", address)
    assert result.exit_code == 2
    assert f"{address}: no Dask scheduler answers" in result.stderr


def without_times(text: str) -> dict[str, Any]:
    """Return a comparison without the wall times that depend on the machine."""
    found = json.loads(text)
    for cell in found["cells"]:
        cell["result"]["wall_seconds"] = cell["result"]["metrics"]["session_s"] = None
    for model in found["models"]:
        for part in (model["means"], model["differences"]):
            part.pop("session mean"), part.pop("session p99")
    return found


def test_workers_give_what_one_process_gives() -> None:
    grid = (SMALL, FAILURES, *TWO, "--seeds", "0-1", "-o", "json")
    alone, spread = compare(*grid, "--workers", 0), compare(*grid, "--workers", 2)
    assert (alone.exit_code, spread.exit_code) == (0, 0), spread.output
    assert without_times(spread.stdout) == without_times(alone.stdout)


def test_a_report_is_written_for_people(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    result = here(FAILURES, "--out", tmp_path / "out", "--report", target)
    assert result.exit_code == 0, result.output
    assert "Comparison of volcano-compatible and shortest-remaining" in target.read_text("utf-8")
    cell = next((tmp_path / "out" / "cells").iterdir())
    assert set(json.loads(cell.read_text())["series"]) >= {"jct_s", "queueing_s", "held"}
