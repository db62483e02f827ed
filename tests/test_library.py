"""What programs see: names of `optsched`, and clear errors."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import optsched
from optsched import library
from optsched.cli.main import main
from optsched.formats.solveresult import read_result, write_result
from optsched.session.offline import ResumeError

EXAMPLES = Path(__file__).parents[1] / "instances" / "examples"

FUNCTIONS = [n for n in library.__all__ if inspect.isfunction(getattr(library, n))]


@pytest.mark.parametrize("name", library.__all__)
def test_every_name_is_one_of_the_package(name: str) -> None:
    assert getattr(optsched, name) is getattr(library, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_tells_its_parameters_and_what_it_raises(name: str) -> None:
    doc = inspect.getdoc(getattr(library, name)) or ""
    assert "Raises" in doc or name in ("compile_problem", "trace")
    if len(inspect.signature(getattr(library, name)).parameters) > 1:
        assert "Parameters" in doc


def test_other_names_are_none_and_nothing_is_loaded_before_it_is_used() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = optsched.sovle
    code = "import optsched, sys; print('numpy' in sys.modules, optsched.solve.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False solve\n"


def test_wrong_amounts_and_numbers_are_told() -> None:
    with pytest.raises(ValueError, match="cpu"):
        optsched.node("a", {"cpu": "much"})
    with pytest.raises(ValueError, match="3 of 2 tasks is no gang"):
        optsched.gang("g", 2, {"cpu": "1"}, least=3)
    with pytest.raises(ValueError, match="a"):
        optsched.snapshot([optsched.node("a", {}), optsched.node("a", {})], [])


def test_a_gang_of_which_a_plan_says_nothing_is_no_gang() -> None:
    plan = optsched.solve(optsched.snapshot([optsched.node("a", {"cpu": "1"})], []))
    with pytest.raises(KeyError, match="default/g: neither waits nor starts"):
        optsched.explain(plan, "g")


def test_the_same_cluster_gives_the_same_plan() -> None:
    nodes = [optsched.node(f"n{i}", {"cpu": "4"}) for i in range(3)]
    gangs = [optsched.gang(f"g{i}", 2, {"cpu": "3"}) for i in range(2)]
    cluster = optsched.snapshot(nodes, gangs)
    first, second = optsched.solve(cluster), optsched.solve(cluster)
    assert first.actions == second.actions
    assert len(first.binds) == 2


def test_progress_is_told_and_results_can_be_gone_on_from() -> None:
    nodes = [optsched.node(f"n{i}", {"cpu": "4"}) for i in range(2)]
    gangs = [optsched.gang("a", 5, {"cpu": "1"}), optsched.gang("b", 2, {"cpu": "4"})]
    cluster, told = optsched.snapshot(nodes, gangs), []
    plan = optsched.solve(cluster, gap=0.5, seed=3, progress=told.append)
    assert {p.level for p in told} == {level.name for level in plan.certificate.levels}
    result = optsched.solve_result(cluster, seed=3)
    assert result == optsched.solve_result(cluster, seed=3)
    assert (result.ended, result.parameters.seed) == ("complete", 3)
    again = optsched.solve_result(cluster, seed=3, resume=result)
    assert again.plan is not None
    assert result.plan is not None
    assert again.plan.binds == result.plan.binds
    with pytest.raises(ResumeError, match=r"instance\.sha256"):
        optsched.solve_result(optsched.snapshot(nodes, gangs[:1]), resume=result)


def test_results_of_files_can_be_gone_on_from_by_both(tmp_path: Path) -> None:
    """By the command from what a program has written, and the other way round."""
    place, kept = str(EXAMPLES / "packing.yaml"), tmp_path / "result.json"
    first = optsched.solve_result(place)
    kept.write_text(write_result(first), encoding="utf-8")
    asked = ["solve", place, "--deterministic", "--resume", str(kept), "--result", str(kept)]
    done = CliRunner().invoke(main, asked)
    assert (done.exit_code, "resumed" in done.output) == (0, True)
    second, errors = read_result(kept.read_text("utf-8"))
    assert second is not None, errors
    assert second.instance.sha256 == first.instance.sha256
    third = optsched.solve_result(Path(place), resume=second)
    assert (third.ended, third.incumbents) == ("complete", second.incumbents)
    with pytest.raises(ResumeError, match=r"instance\.sha256"):
        optsched.solve_result(optsched.read(place), resume=second)


def test_pods_of_both_names_are_read_as_by_the_command(tmp_path: Path) -> None:
    def pod(name: str) -> str:
        spec = f"schedulerName: {name}, containers: [{{name: c, image: i}}]"
        return f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}"

    names = ("volcano", "optsched", "other")
    (tmp_path / "pods.yaml").write_text("\n---\n".join(map(pod, names)), encoding="utf-8")
    found = [task.name for gang in optsched.read(tmp_path).gangs for task in gang.tasks]
    assert sorted(found) == ["optsched", "volcano"]
