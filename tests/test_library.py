"""Tests of the public names of `optsched`, and of clear errors."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click import Context
from click.testing import CliRunner

import optsched
from optsched import library
from optsched.cli.main import main
from optsched.formats.solve_result import read_result, write_result
from optsched.session.offline import ResumeError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "instances" / "examples"
PACKING = EXAMPLES / "packing.yaml"

FUNCTIONS = [n for n in library.__all__ if inspect.isfunction(getattr(library, n))]


@pytest.mark.parametrize("name", library.__all__)
def test_every_name_is_one_of_the_package(name: str) -> None:
    assert getattr(optsched, name) is getattr(library, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_tells_its_parameters_and_what_it_raises(name: str) -> None:
    doc = inspect.getdoc(getattr(library, name)) or ""
    assert "Raises" in doc or name == "trace"
    if len(inspect.signature(getattr(library, name)).parameters) > 1:
        assert "Parameters" in doc


@pytest.mark.parametrize("name", ["solve", "simulate", "compare"])
def test_settings_have_the_names_of_the_commands_options(name: str) -> None:
    """The library uses no abbreviations, and no second name for an option."""
    command = main.get_command(Context(main), name)
    assert command is not None
    options = {option for each in command.params for option in each.opts}
    parameters = inspect.signature(getattr(library, name)).parameters.values()
    settings = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert settings
    assert {f"--{setting.replace('_', '-')}" for setting in settings} <= options


def test_other_names_are_none_and_nothing_is_loaded_before_it_is_used() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = optsched.sovle
    code = "import optsched, sys; print('numpy' in sys.modules, optsched.solve.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False solve\n"


def test_wrong_amounts_and_numbers_are_told() -> None:
    with pytest.raises(ValueError, match=r'allocatable\[cpu\]: "much" is not a quantity'):
        optsched.node("a", {"cpu": "much"})
    with pytest.raises(ValueError, match="min_available: 3 is not a whole number from 0 to 2"):
        optsched.gang("g", 2, {"cpu": "1"}, min_available=3)
    with pytest.raises(ValueError, match="nodes: a is given more than once"):
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
    """The command resumes a result of the library, and the library one of the command."""
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


def test_names_of_the_module_are_those_of_the_library() -> None:
    assert set(optsched.__all__) == {*library.__all__, "__version__"}
    assert set(optsched.__all__) <= set(dir(optsched))
    assert all(getattr(optsched, name) is not None for name in optsched.__all__)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Given", "LoadedTrace"),
        ("PlaceError", "ExecutorError"),
        ("Played", "SimulationResult"),
    ],
)
def test_earlier_names_of_classes_are_deprecated(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"optsched.{old} is deprecated: use {new}"):
        assert getattr(optsched, old) is getattr(optsched, new)
    assert old not in dir(optsched)


def test_the_earlier_name_of_an_argument_is_deprecated() -> None:
    path = ROOT / "instances" / "traces" / "failures.yaml"
    with pytest.warns(DeprecationWarning, match="given=…. is deprecated: use trace"):
        found = optsched.simulate(given=path, until="1h")
    assert found.jobs == optsched.simulate(trace=path, until="1h").jobs


def test_paths_and_names_are_taken_in_the_place_of_values() -> None:
    path = ROOT / "instances" / "examples" / "packing.yaml"
    policy = optsched.load_policy("volcano-compatible")
    plans = [
        optsched.solve(cluster, model)
        for cluster in (optsched.read(path), path, str(path))
        for model in (policy, "volcano-compatible", ROOT / "models" / "volcano-compatible.yaml")
    ]
    assert len({tuple(plan.binds.items()) for plan in plans}) == 1
    assert plans[0].binds


def test_a_replay_tells_start_and_end_of_each_job() -> None:
    path = ROOT / "instances" / "traces" / "failures.yaml"
    played = optsched.simulate(path)
    assert len(played.jobs) == played.metrics.finished == 4
    ends = [job.ended_ms for job in played.jobs]
    assert max(ends) / 1000 == played.metrics.makespan_s
    for job in played.jobs:
        assert job.arrived_ms <= job.started_ms < job.ended_ms
    cut = optsched.simulate(optsched.read_trace(path), until="1h")
    assert all(job.ended_ms is None for job in cut.jobs)
    assert cut.jobs[0].started_ms == 0


def test_values_are_compared_under_policies() -> None:
    gang = optsched.gang("g", 1, {"cpu": "1"})
    arrivals = [optsched.arrival(gang, at="0s", duration="1h")]
    given = optsched.trace("one", [optsched.node("a", {"cpu": "1", "pods": "9"})], arrivals)
    policy = optsched.load_policy("volcano-compatible")
    found = optsched.compare([given], [policy, "max-throughput"])
    assert [row.result["metrics"]["finished"] for row in found.rows] == [1, 1]
    assert given.sha256


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: optsched.read("gone.yaml"), optsched.InstanceError),
        (lambda: optsched.simulate("gone.yaml"), optsched.InstanceError),
        (lambda: optsched.simulate("gavel:jobs=nan"), optsched.SyntheticError),
        (lambda: optsched.load_policy("gone"), optsched.PolicyError),
        (lambda: optsched.simulate("gavel:jobs=1,nodes=1", period="0s"), optsched.DurationError),
        (lambda: optsched.node("a", {"nvidia.com/gpu": "500m"}), ValueError),
        (lambda: optsched.compare(["gavel:jobs=1"], ["crater", "crater"]), ValueError),
        (lambda: optsched.compare([], ["crater"]), ValueError),
        (lambda: optsched.read("x" * 300), optsched.InstanceError),
        (lambda: optsched.read("/dev/null"), optsched.InstanceError),
        (lambda: optsched.read_trace("x" * 300), optsched.InstanceError),
        (lambda: optsched.load_policy("x" * 300), optsched.PolicyError),
    ],
)
def test_what_is_wrong_has_an_error_of_its_own(
    call: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call()


NODE = optsched.node("a", {"cpu": "1"})
GANG = optsched.gang("g", 1, {"cpu": "1"})
WRONG = [
    (lambda: optsched.solve(None), "cluster: None is not a snapshot or a path"),
    (lambda: optsched.solve([NODE]), "cluster: "),
    (lambda: optsched.solve(PACKING, None), "model: None is not the name of a model, a path or a"),
    (lambda: optsched.solve(PACKING, time_limit=-1), "time_limit: -1 is not a number of seconds"),
    (lambda: optsched.solve(PACKING, time_limit=math.nan), "time_limit: nan is not a number"),
    (lambda: optsched.solve(PACKING, time_limit=1e30), "time_limit: 1e+30 is not a number of sec"),
    (lambda: optsched.solve(PACKING, time_limit="5"), "time_limit: '5' is not a number"),
    (lambda: optsched.solve(PACKING, gap=2), "gap: 2 is not a fraction from 0 to below 1"),
    (lambda: optsched.solve(PACKING, gap=True), "gap: True is not a fraction"),
    (
        lambda: optsched.solve(PACKING, seed=-1),
        "seed: -1 is not a whole number from 0 to 214748",
    ),
    (lambda: optsched.solve(PACKING, seed=1.5), "seed: 1.5 is not a whole number"),
    (lambda: optsched.solve(PACKING, progress=5), "progress: 5 is not a function, or None"),
    (lambda: optsched.solve_result(PACKING, resume="x"), "resume: 'x' is not a result of solve_re"),
    (lambda: optsched.solve_result(5), "cluster: 5 is not"),
    (lambda: optsched.simulate(None), "trace: None is not a trace, a path or gavel:…"),
    (lambda: optsched.simulate(optsched.snapshot([NODE], [])), "trace: Snapshot("),
    (lambda: optsched.simulate("gavel:", 5), "model: 5 is not"),
    (lambda: optsched.simulate("gavel:", seed="1"), "seed: '1' is not a whole number"),
    (
        lambda: optsched.compare("gavel:", ["crater"]),
        "traces: 'gavel:' is not a list: each is",
    ),
    (lambda: optsched.compare(["gavel:"], "crater"), "models: 'crater' is not a list"),
    (lambda: optsched.compare(None, None), "traces: None is not a list"),
    (lambda: optsched.compare(["gavel:", 5], ["crater"]), r"traces[1]: 5 is not a trace"),
    (lambda: optsched.compare(["gavel:"], ["crater"], "01"), "seeds: '01' is not a list"),
    (lambda: optsched.compare(["gavel:"], ["crater"], [-1]), "seeds[0]: -1 is not a whole"),
    (
        lambda: optsched.compare(["gavel:"], ["crater"], workers=-1),
        "workers: -1 is not a whole",
    ),
    (lambda: optsched.compare(["gavel:", ""], ["crater"]), "traces[1]: '' is not a trace, a path"),
    (lambda: optsched.compare(["gavel:"], []), "models: there is no model: give at least one"),
    (lambda: optsched.node("", {}), "name: '' is not a name"),
    (lambda: optsched.node(5, {}), "name: 5 is not a name"),
    (lambda: optsched.node("a\nb", {}), r"name: 'a\nb' is not a name"),
    (lambda: optsched.node("a", None), "allocatable: None is not resource names with quantities"),
    (lambda: optsched.queue("q", weight=0), "weight: 0 is not a whole number from 1 on"),
    (lambda: optsched.queue("q", deserved=["cpu"]), "deserved: ['cpu'] is not resource names"),
    (lambda: optsched.queue("q", deserved={"cpu": "x"}), 'deserved[cpu]: "x" is not a quantity'),
    (lambda: optsched.gang("a/b/c", 1, {}), "name: 'a/b/c' is not namespace/name, or a name"),
    (lambda: optsched.gang("/b", 1, {}), "name: '/b' is not namespace/name"),
    (lambda: optsched.gang("g", 0, {}), "tasks: 0 is not a whole number from 1 on"),
    (lambda: optsched.gang("g", 1.5, {}), "tasks: 1.5 is not a whole number"),
    (lambda: optsched.gang("g", 1, {}, queue=None), "queue: None is not a name"),
    (lambda: optsched.gang("g", 1, {}, priority="high"), "priority: 'high' is not a whole number"),
    (lambda: optsched.snapshot(["a"], []), "nodes[0]: 'a' is not a result of node"),
    (lambda: optsched.snapshot([NODE], None), "gangs: None is not a list"),
    (lambda: optsched.snapshot([], [GANG, GANG]), "gangs: default/g is given more than once"),
    (lambda: optsched.arrival("g", at="0s"), "gang: 'g' is not a result of gang"),
    (lambda: optsched.trace("t", [NODE], [GANG]), "arrivals[0]: Gang("),
    (lambda: optsched.compile_problem(3), "cluster: 3 is not a snapshot or a path"),
    (lambda: optsched.compile_problem(PACKING, 3), "previous: 3 is not a result of compile_probl"),
    (lambda: optsched.explain(None, "g"), "plan: None is not a result of solve"),
    (lambda: optsched.read(None), "path: None is not a path"),
    (lambda: optsched.read_trace(5), "source: 5 is not a path or gavel:…"),
    (lambda: optsched.load_policy(5), "model: 5 is not the name of a model or a path"),
    (lambda: optsched.load_policy("a\0b"), r"model: 'a\x00b' is not the name of a model or a path"),
    (lambda: optsched.load_policy("http://a/b"), "model: 'http://a/b' is a URL: download it, and"),
    (lambda: optsched.read(""), "path: '' is not a path"),
    (lambda: optsched.read("a\0b"), r"path: 'a\x00b' is not a path"),
    (lambda: optsched.read("https://a/b"), "path: 'https://a/b' is a URL: download it, and name"),
    (lambda: optsched.read_trace(""), "source: '' is not a path or gavel:…"),
    (lambda: optsched.read_trace("gone", "acme", nodes=""), "nodes: '' is not a path"),
    (lambda: optsched.read_trace("s3://a/b"), "source: 's3://a/b' is a URL: download it, and name"),
    (lambda: optsched.solve(""), "cluster: '' is not a snapshot or a path"),
    (lambda: optsched.solve_result("http://a"), "cluster: 'http://a' is a URL: download it"),
    (lambda: optsched.simulate(""), "trace: '' is not a trace, a path or gavel:…"),
    (lambda: optsched.simulate("gavel:", period=3), "period: 3 is not a duration such as 60s"),
    (lambda: optsched.simulate("gavel:", warm_up=None), "warm_up: None is not a duration such as"),
    (lambda: optsched.arrival(GANG, 3), "at: 3 is not a duration such as 60s or 1h30m"),
    (lambda: optsched.node("a", {}, labels="x"), "labels: 'x' is not a mapping from names to str"),
    (
        lambda: optsched.node("a", {}, labels={"x": 1}),
        "labels: {'x': 1} is not a mapping from name",
    ),
    (lambda: optsched.gang("g", 1, {}, annotations=3), "annotations: 3 is not a mapping from name"),
    (lambda: optsched.snapshot([], [], taken_ms=math.nan), "taken_ms: nan is not a whole number"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_argument_is_named_with_what_is_accepted(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(optsched.ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_argument_with_a_wrong_duration_is_named() -> None:
    with pytest.raises(optsched.DurationError, match=r"300ms or 1h30m \(argument until\)"):
        optsched.simulate("gavel:jobs=1,nodes=1", until="soon")


def test_dir_lists_the_names_of_the_api_alone() -> None:
    code = "import optsched; print(*(n for n in dir(optsched) if not n.startswith('__')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == sorted(library.__all__)


@pytest.mark.parametrize(("at", "duration"), [("-1s", "1h"), ("0s", "-1h")])
def test_no_gang_arrives_before_the_beginning(at: str, duration: str) -> None:
    with pytest.raises(optsched.DurationError, match="write a duration of zero or more"):
        optsched.arrival(GANG, at, duration)
    with pytest.raises(optsched.DurationError, match=r"zero or more.*argument warm_up"):
        optsched.simulate("gavel:jobs=1,nodes=1", warm_up="-1s")


def test_numbers_of_numpy_are_numbers() -> None:
    found = optsched.compare(["gavel:jobs=2,nodes=1"], ["volcano-compatible"], np.arange(2))
    assert [row.seed for row in found.rows] == [0, 1]
    assert json.loads(json.dumps(found.as_json()))["models"][0]["name"] == "volcano-compatible"
