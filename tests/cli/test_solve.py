"""Tests of the output, files and exit codes of `optsched solve`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.formats.plan import read_plan

if TYPE_CHECKING:
    from click.testing import Result

PACKING = Path(__file__).parents[2] / "instances" / "examples" / "packing.yaml"


def solve(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["solve", *map(str, arguments)])


def test_it_prints_placements_certificate_and_reasons() -> None:
    result = solve(PACKING)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["ml/pair", "2", "gpu-1,", "gpu-2"] in lines
    assert [
        "admission,",
        "priority",
        "0",
        "nvidia.com/gpu",
        "16",
        "≤",
        "16",
        "0",
        "OPTIMAL",
    ] in lines
    assert "proved: no plan is better" in result.stdout
    assert "ml/whole-cluster" in result.stdout.split("pending")[1]


def test_the_pipeline_alone_places_less_and_claims_no_proof() -> None:
    result = solve(PACKING, "--solver", "none")
    assert result.exit_code == 0
    assert re.search(r"ml/train-b +ResourcesFragmented", result.stdout)
    assert "not proved on any level" in result.stdout


def test_the_plan_file_says_the_same(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert solve(PACKING, "--out", out).exit_code == 0
    plan, errors = read_plan(out.read_text())
    assert errors == ()
    assert plan is not None
    assert set(plan.binds) == {"ml/pair-0", "ml/pair-1", "ml/train-a-0", "ml/train-b-0"}
    assert set(plan.pending) == {"ml/whole-cluster"}
    assert plan.certificate.is_proved
    assert {"binds", "evictions", "nominations", "pending", "certificate"} <= set(
        json.loads(out.read_text())
    )


def test_two_deterministic_runs_write_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for out in files:
        assert solve(PACKING, "--deterministic", "--out", out).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_solver_gets_as_long_as_it_is_given() -> None:
    result = solve(PACKING, "--time-limit", "0")
    assert result.exit_code == 0
    assert "FEASIBLE" in result.stdout


def test_a_volcano_configuration_is_a_model(tmp_path: Path) -> None:
    conf = tmp_path / "volcano-scheduler.conf"
    conf.write_text(
        'actions: "enqueue, allocate, backfill"\n'
        "tiers:\n- plugins:\n  - name: priority\n  - name: gang\n- plugins:\n  - name: predicates\n"
    )
    result = solve(PACKING, "--model", conf)
    assert result.exit_code == 0
    assert "ml/pair" in result.stdout


# --- bad input -----------------------------------------------------------------------------------


def test_an_unknown_model_is_an_error_that_names_the_known_ones() -> None:
    result = solve(PACKING, "--model", "volcano-defualt")
    assert result.exit_code == 2
    assert "volcano-default" in result.stderr
    assert result.stdout == ""


def test_a_mistake_in_a_model_is_shown_where_it_stands(tmp_path: Path) -> None:
    model = tmp_path / "mine.yaml"
    model.write_text('actions: "enqueue, alocate"\ntiers:\n- plugins:\n  - name: gnag\n')
    result = solve(PACKING, "--model", model)
    assert result.exit_code == 2
    assert f"{model}:1:20" in result.stderr
    assert "allocate" in result.stderr
    assert "gang" in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: [", "cluster.yaml:2:1: is not YAML"),
        ("", "nothing to schedule"),
        ("just words", "1"),
    ],
    ids=["broken", "empty", "words"],
)
def test_an_instance_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    instance = tmp_path / "cluster.yaml"
    instance.write_text(text)
    result = solve(instance)
    assert result.exit_code == 2
    assert "cluster.yaml" in result.stderr
    assert says in result.stderr


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = solve(tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr


def test_one_bad_object_costs_nothing_else(tmp_path: Path) -> None:
    objects = yaml.load(PACKING.read_text(), yaml.CSafeLoader)["items"]
    bad = next(o for o in objects if o["metadata"]["name"] == "train-a-0")
    bad["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1_000"
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    result = solve(path)
    assert result.exit_code == 0
    assert "1_000" in result.stderr
    assert "train-a-0" in result.stderr
    assert "ml/whole-cluster" in result.stdout.split("certificate")[0]
    assert "ml/train-a" in result.stdout.split("pending")[1]


def test_without_nodes_everything_waits_for_them(tmp_path: Path) -> None:
    objects = yaml.load(PACKING.read_text(), yaml.CSafeLoader)["items"]
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all([o for o in objects if o["kind"] != "Node"]))
    result = solve(path)
    assert result.exit_code == 0
    assert "the cluster has no nodes" in result.stdout


def test_a_report_of_several_models_is_one_page(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    models = ("--model", "volcano-default", "--model", "volcano-compatible")
    result = solve(PACKING, *models, "--deterministic", "--report", target)
    assert result.exit_code == 0, result.output
    text = target.read_text("utf-8")
    assert "<h1>Plan for packing.yaml</h1>" in text
    assert "ml/whole-cluster" in text
    assert solve(PACKING, *models, "--deterministic", "--report", target).exit_code == 0
    assert target.read_text("utf-8") == text


def test_a_report_into_no_folder_is_refused_before_anything_is_solved(tmp_path: Path) -> None:
    result = solve(PACKING, "--report", tmp_path / "no" / "a.html")
    assert result.exit_code == 4
    assert "there is no folder" in result.stderr
    assert result.stdout == ""
