"""Tests of `optsched gpu-hours` for replays and for observed clusters."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.main import main

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]
FAILURES = ROOT / "instances" / "traces" / "failures.yaml"

PICTURE = """\
apiVersion: v1
kind: Node
metadata: {{name: gpu}}
status:
  allocatable: {{cpu: 96, memory: 768Gi, nvidia.com/gpu: 8, pods: 110}}
  conditions: [{{type: Ready, status: "True"}}]
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {{name: lab}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: train, namespace: ns, annotations: {{optsched.io/user: ann}}}}
spec: {{minMember: 1, queue: lab}}
---
apiVersion: v1
kind: Pod
metadata: {{name: train-0, namespace: ns, annotations: {{scheduling.k8s.io/group-name: train}}}}
spec:
  schedulerName: volcano
  nodeName: gpu
  containers: [{{name: c, image: i, resources: {{requests: {{nvidia.com/gpu: 4}}}}}}]
status: {{phase: {phase}}}
---
apiVersion: optsched.io/v1alpha1
kind: Snapshot
takenAt: "{taken}"
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    done = run("simulate", FAILURES, "--model", "volcano-compatible", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    return tmp_path / "out"


def test_a_replay_writes_what_everybody_has_held(replay: Path) -> None:
    result = json.loads((replay / "result.json").read_text())["gpu_hours"]
    rows = list(csv.DictReader((replay / "gpu-hours.csv").read_text().splitlines()))
    assert [(r["queue"], r["user"]) for r in rows] == [
        (c["queue"], c["user"]) for c in result["charges"]
    ]
    assert sum(int(r["held_gpu_us"]) for r in rows) == result["total"]["held_gpu_us"]
    assert result["unit"] == "GPU-microseconds"
    shown = run("gpu-hours", replay, "-o", "csv")
    assert list(csv.DictReader(io.StringIO(shown.stdout))) == rows
    assert json.loads(run("gpu-hours", replay, "-o", "json").stdout) == result


def test_tables_are_by_queue_by_user_or_by_both(replay: Path) -> None:
    heads = [run("gpu-hours", replay, "--by", by).stdout.split()[:2] for by in ("queue", "user")]
    assert heads == [["queue", "jobs"], ["user", "jobs"]]
    assert run("gpu-hours", replay).stdout.split()[:2] == ["queue", "user"]


def test_lost_hours_are_those_of_the_figures(replay: Path) -> None:
    result = json.loads((replay / "result.json").read_text())
    total = result["gpu_hours"]["total"]
    lost = total["evicted_gpu_us"] + total["failed_gpu_us"]
    assert lost / result["gpu_hours"]["gpu_hour"] == result["metrics"]["wasted_gpu_hours"]
    assert min(total["evicted_gpu_us"], total["failed_gpu_us"]) >= 0 < lost


def test_a_folder_without_either_is_no_place_to_read(tmp_path: Path) -> None:
    result = run("gpu-hours", tmp_path)
    assert result.exit_code == 2
    assert "contains no snapshots of a cluster" in result.stderr
    (tmp_path / "result.json").write_text("{}")
    assert "is not a replay result" in run("gpu-hours", tmp_path).stderr


def test_a_cluster_that_was_watched_is_charged_too(tmp_path: Path) -> None:
    times = (("10:00:00", "Running"), ("10:20:00", "Running"), ("10:30:00", "Succeeded"))
    for number, (time, phase) in enumerate(times):
        text = PICTURE.format(phase=phase, taken=f"2026-01-02T{time}Z")
        (tmp_path / f"snapshot-{number:06d}.yaml").write_text(text)
    result = run("gpu-hours", tmp_path, "-o", "json")
    assert result.exit_code == 0, result.output
    (charge,) = json.loads(result.stdout)["charges"]
    assert (charge["queue"], charge["user"], charge["jobs"]) == ("lab", "ann", 1)
    assert charge["held_gpu_us"] == 2 * json.loads(result.stdout)["gpu_hour"]


def test_models_are_charged_apart(tmp_path: Path) -> None:
    trace = "gavel:jobs=8,nodes=1,load=1.2,estimated=1"
    models = ("--model", "volcano-compatible", "--model", "shortest-remaining", "--solver", "none")
    done = run("compare", trace, *models, "--workers", 0, "--out", tmp_path, "--period", "60s")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "gpu-hours.csv").read_text().splitlines()))
    found = json.loads((tmp_path / "comparison.json").read_text())["models"]
    for model in found:
        mine = [int(r["held_gpu_us"]) for r in rows if r["model"] == model["name"]]
        assert sum(mine) == model["gpu_hours"]["total"]["held_gpu_us"] > 0
