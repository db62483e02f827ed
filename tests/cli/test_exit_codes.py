"""A test here or elsewhere produces every exit code that docs/commands.md names."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from optsched.api.kinds import JOB_FLOW, JOB_TEMPLATE
from optsched.cli import legacy
from optsched.cli.commands import CODES, MEANINGS, codes_of
from optsched.cli.main import main
from optsched.cli.offline.solve_model import solve_one
from optsched.kube.client.errors import Conflict, Forbidden, KubeError, NotFound, ServerFault
from optsched.session.session import NOTHING
from tests.cli.clusters import CONTEXT, FakeCluster, job, pod, queue
from tests.cli.test_flows import obj
from tests.cli.test_reassign import MODEL
from tests.support.disk import fill_for
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from click.testing import Result

JOB_FILE: Final = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: new}
spec: {tasks: [{name: a, replicas: 1, template: {spec: {containers: [{name: m, image: i}]}}}]}
"""
FLOW_FILE: Final = """\
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: new}
spec: {flows: [{name: a}]}
"""
TEMPLATE_FILE: Final = """\
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: new}
spec: {tasks: [{name: a, replicas: 1, template: {spec: {containers: [{name: m, image: i}]}}}]}
"""
KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
current-context: a
contexts: [{{name: a, context: {{cluster: c, user: u, namespace: team-a}}}}]
clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]
users: [{{name: u, user: {{}}}}]
"""
HUGE: Final = "containers: [{name: m, image: i, resources: {requests: {cpu: 64}}}]"
FILES: Final = {
    "Job": JOB_FILE,
    "Huge": JOB_FILE.replace("containers: [{name: m, image: i}]", HUGE),
    "Large": JOB_FILE.replace("containers: [{name: m, image: i}]", HUGE.replace("64", "3")),
    "JobFlow": FLOW_FILE,
    "JobTemplate": TEMPLATE_FILE,
}


Others = dict[int, tuple[str, "Callable[[FakeCluster], object] | None"]]


@dataclass(frozen=True)
class Act:
    """A command line that succeeds on a cluster, and variants that end with other exit codes.

    `line` may name files of `FILES` in braces. `others` maps an exit code to another command line
    and a change of the cluster.
    """

    line: str
    others: Others = field(default_factory=dict)


def phase(phase: str, name: str = "one") -> Callable[[FakeCluster], object]:
    """Return a function that adds a job in the given phase to a cluster."""
    return lambda cluster: cluster.put(job(name, phase=phase))


def changed(cluster: FakeCluster) -> None:
    """Let deletions fail because a new object has the name of the old one."""
    cluster.refuse("delete", Conflict(409, "Conflict", "another uid"))


def hopeless(cluster: FakeCluster) -> None:
    cluster.put(job("one", phase="Pending"))
    why = {"type": "Unschedulable", "status": "True", "reason": "Impossible", "message": "no"}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "one-uid-one", "namespace": CONTEXT},
        "spec": {"minMember": 3},
        "status": {"phase": "Pending", "conditions": [why]},
    }
    cluster.put(group)


def elsewhere(cluster: FakeCluster) -> None:
    cluster.put(pod("one", labels={"volcano.sh/job-name": "one"}))


def with_child(cluster: FakeCluster) -> None:
    cluster.put(queue("below", "one"))


def shut(cluster: FakeCluster) -> None:
    cluster.put(queue("one", "up", status={"state": "Closed"}))
    cluster.put(queue("up", status={"state": "Closed"}))


def full(cluster: FakeCluster) -> None:
    """Add a pod that occupies half of the node."""
    there = pod("busy")
    there["spec"]["schedulerName"] = "volcano"
    there["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    cluster.put(there)


NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
WHAT_IF: Final = "what-if --model volcano-compatible --solver none -f"
ACTS: Final = {
    "job delete": Act("job delete one", {4: ("job delete one", changed)}),
    "job explain": Act(
        "job explain one",
        {8: ("job explain one", phase("Pending")), 9: ("job explain one", hopeless)},
    ),
    "job list": Act("job list"),
    "job resume": Act("job resume one", {4: ("job resume one", phase("Completed"))}),
    "job run": Act("job run -f {Job}", {4: ("job run one", None)}),
    "job suspend": Act("job suspend one", {4: ("job suspend one", phase("Failed"))}),
    "job view": Act("job view one"),
    "job watch": Act(
        "job watch done",
        {
            1: ("job watch one", phase("Failed")),
            7: ("job watch one --timeout 20ms", phase("Running")),
        },
    ),
    "jobflow create": Act(
        "jobflow create -f {JobFlow}", {4: ("jobflow create -f {JobFlow}", None)}
    ),
    "jobflow delete": Act("jobflow delete one", {4: ("jobflow delete one", changed)}),
    "jobflow describe": Act("jobflow describe one"),
    "jobflow get": Act("jobflow get one"),
    "jobflow list": Act("jobflow list"),
    "jobtemplate create": Act(
        "jobtemplate create -f {JobTemplate}", {4: ("jobtemplate create -f {JobTemplate}", None)}
    ),
    "jobtemplate delete": Act("jobtemplate delete one", {4: ("jobtemplate delete one", changed)}),
    "jobtemplate describe": Act("jobtemplate describe"),
    "jobtemplate get": Act("jobtemplate get one"),
    "jobtemplate list": Act("jobtemplate list"),
    "pod list": Act("pod list", {4: ("pod list -j one -q other", elsewhere)}),
    "queue create": Act("queue create new", {4: ("queue create one", None)}),
    "queue delete": Act("queue delete one", {4: ("queue delete one", with_child)}),
    "queue get": Act("queue get one"),
    "queue list": Act("queue list"),
    "queue operate": Act(
        "queue operate one -a update -w 2", {4: ("queue operate one -a open", shut)}
    ),
    "snapshot": Act("snapshot"),
    "vcancel": Act("vcancel -n one", {4: ("vcancel -n one", changed)}),
    "vjobs": Act("vjobs"),
    "vqueues": Act("vqueues"),
    "vresume": Act("vresume -n one", {4: ("vresume -n one", phase("Completed"))}),
    "vsub": Act("vsub -n new", {4: ("vsub -n one", None)}),
    "vsuspend": Act("vsuspend -n one", {4: ("vsuspend -n one", phase("Failed"))}),
    "what-if": Act(
        f"{WHAT_IF} {{Job}}",
        {
            4: (f"{WHAT_IF} {{Job}}", phase("Running", "new")),
            8: (f"{WHAT_IF} {{Large}}", full),
            9: (f"{WHAT_IF} {{Huge}}", None),
        },
    ),
}
"""The commands that talk to a cluster."""

PLANE: Final = "../e2e/test_local.py"
NO_PLANE: Final = "test_local.py::test_without_a_plane_they_say_so"
TESTED: Final = {
    "compare": {
        0: "test_compare.py::test_models_are_compared_on_every_trace_and_seed",
        1: "test_compare.py::test_a_cell_that_fails_costs_no_other",
        2: "test_compare.py::test_bad_input_is_told",
        130: "test_compare.py::test_who_stops_it_keeps_what_was_played",
    },
    "completion": {0: "test_vcctl.py::test_a_shell_completes_what_is_typed", 2: ""},
    "controllers": {
        0: "test_controllers.py::test_controllers_are_chosen",
        1: "test_exit_codes.py::test_processes_of_a_cluster_end_with_1_without_one",
        2: "",
    },
    "demo": {
        0: "test_demo.py::test_gangs_finish_and_single_tasks_hold_each_other_up",
        1: "test_exit_codes.py::test_a_demo_that_goes_wrong_ends_with_1",
        2: "",
    },
    "gpu-hours": {
        0: "test_gpu_hours.py::test_a_replay_writes_what_everybody_has_held",
        2: "test_gpu_hours.py::test_a_folder_without_either_is_no_place_to_read",
    },
    "local down": {
        0: PLANE,
        1: "test_local.py::test_without_a_plane_they_say_so",
        2: "",
    },
    "local kubeconfig": {
        0: PLANE,
        1: "test_local.py::test_without_a_plane_they_say_so",
        2: "",
    },
    "local status": {
        0: PLANE,
        1: "test_local.py::test_without_a_plane_they_say_so",
        2: "",
    },
    "local up": {
        0: PLANE,
        1: "test_local.py::test_without_binaries_up_says_what_would_help",
        2: "test_local.py::test_counts_are_not_negative",
    },
    "scheduler": {
        0: "test_scheduler.py::test_without_flags",
        1: "test_scheduler.py::test_what_can_not_be_had_ends_it",
        2: "test_scheduler.py::test_flags_that_are_wrong_are_named",
    },
    "simulate": {
        0: "test_simulate.py::test_it_prints_what_came_of_a_trace",
        1: "test_simulate.py::test_a_checkpoint_is_of_one_replay_only",
        2: "test_simulate.py::test_bad_input_ends_with_2",
        130: "test_simulate.py::test_it_goes_on_after_a_signal",
    },
    "solve": {
        0: "test_solve.py::test_it_prints_placements_certificate_and_reasons",
        2: "test_solve.py::test_a_missing_file_is_refused",
        3: "test_exit_codes.py::test_solve_ends_with_3_where_no_plan_keeps_every_rule",
        4: "test_solve_results.py::test_a_file_is_no_folder_for_several_models",
        130: "test_solve_results.py::test_who_stops_it_finds_what_there_was",
        143: "test_solve_results.py::test_who_stops_it_finds_what_there_was",
    },
    "solve FILE.vbp": {
        0: "test_pack.py::test_a_table_of_several",
        2: "test_pack.py::test_options_of_clusters_are_not_for_packings",
        3: "test_pack.py::test_what_has_no_packing",
        4: "test_pack.py::test_a_file_that_can_not_be_written",
        130: "test_pack.py::test_ctrl_c_gives_the_best_so_far",
    },
    "solve model_*.txt": {
        0: "test_reassign.py::test_a_table_and_an_assignment",
        2: "test_reassign.py::test_what_is_wrong_is_told",
        3: "test_reassign.py::test_what_is_wrong_is_told",
        4: "test_exit_codes.py::test_an_assignment_that_can_not_be_written_ends_with_4",
        130: "test_reassign.py::test_stopped_by_hand",
    },
    "version": {0: "test_vcctl.py::test_keys_of_the_version_stay", 2: ""},
    "webhook": {
        0: "test_webhook.py::test_what_it_does_without_flags",
        1: "test_exit_codes.py::test_processes_of_a_cluster_end_with_1_without_one",
        2: "",
    },
}
"""The test of each code of the other commands; empty for wrong usage, which is tested here."""


def run(line: str, tmp_path: Path, *more: str, env: dict[str, str] | None = None) -> Result:
    """Run a command or one of Volcano's old commands, with the files that the line names."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    word, *rest = [
        part.format(**{name: tmp_path / name for name in FILES}) for part in line.split()
    ]
    old = {command.name: command for command in legacy.COMMANDS}
    command, words = (old[word], rest) if word in old else (main, [word, *rest])
    return CliRunner().invoke(command, [*words, *more], env=env)


def ended(result: Result, code: int) -> None:
    """Check that a command ended with an exit code, and that a failure prints an error message."""
    assert result.exit_code == code, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    if code in (2, 3, 4, 5, 6):
        assert "Error: " in result.stderr
        assert result.stdout == ""


@pytest.fixture
def filled(cluster: FakeCluster) -> FakeCluster:
    """Return a cluster with one node and one object named `one` of each kind."""
    one = job("one", phase="Running")
    pods = pod("one", labels={"volcano.sh/job-name": "one"})
    for each in (one, job("done", phase="Completed"), queue("one"), pods, NODE):
        cluster.put(each)
    for kind in (JOB_FLOW, JOB_TEMPLATE):
        cluster.put(obj(kind, "one"))
    return cluster


def test_every_code_of_the_page_is_tested() -> None:
    assert ACTS.keys() | TESTED.keys() == CODES.keys()
    assert not ACTS.keys() & TESTED.keys()
    for name, act in ACTS.items():
        assert {0, 1, 2, 3, 5, 6, *act.others} == set(codes_of(name)), name
    for name, tests in TESTED.items():
        assert set(tests) == set(codes_of(name)), name
        for code, test in tests.items():
            assert test or code == 2, (name, code)
    assert {code for name in CODES for code in codes_of(name)} <= {code for code, _ in MEANINGS}


def test_the_tests_of_codes_are_there() -> None:
    for file, _, name in (t.partition("::") for tests in TESTED.values() for t in tests.values()):
        text = (ROOT / "tests" / "cli" / file).read_text("utf-8") if file else ""
        assert not name or f"\ndef {name}(" in text, (file, name)


@pytest.mark.parametrize("name", ACTS)
def test_what_goes_well_ends_with_0(filled: FakeCluster, tmp_path: Path, name: str) -> None:
    ended_well = run(ACTS[name].line, tmp_path)
    ended(ended_well, 0)
    assert filled.calls


@pytest.mark.parametrize("name", CODES)
def test_wrong_usage_ends_with_2(cluster: FakeCluster, tmp_path: Path, name: str) -> None:
    line = {"solve FILE.vbp": "solve a.vbp", "solve model_*.txt": "solve model_a.txt"}.get(
        name, name
    )
    result = run(line, tmp_path, "--frobnicate")
    ended(result, 2)
    assert "No such option" in result.stderr
    assert cluster.calls == []


FAULTS: Final[dict[int, KubeError]] = {
    1: ServerFault(500, "InternalError", "etcd is full"),
    5: Forbidden(403, "Forbidden", "user eve cannot do that"),
}


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("name", ACTS)
def test_what_a_server_refuses_ends_with_its_code(
    filled: FakeCluster, tmp_path: Path, name: str, code: int
) -> None:
    filled.fault = FAULTS[code]
    result = run(ACTS[name].line, tmp_path)
    ended(result, code)
    assert str(FAULTS[code]) in result.stderr


@pytest.mark.parametrize("name", ACTS)
def test_a_cluster_without_the_kinds_ends_with_3(
    filled: FakeCluster, tmp_path: Path, name: str
) -> None:
    filled.fault = NotFound(404, "NotFound", "the server could not find the requested resource")
    result = run(ACTS[name].line, tmp_path)
    ended(result, 3)


@pytest.mark.parametrize(
    "line",
    [
        *("job view gone", "job explain gone", "job watch gone", "job suspend gone"),
        *("job resume gone", "job delete gone", "jobflow get gone", "jobflow describe gone"),
        *("jobflow delete gone", "jobtemplate delete -f {JobTemplate}", "queue get gone"),
        *("queue delete gone", "queue operate gone -a close", "vjobs -n gone", "vqueues -n gone"),
        *("vcancel -n gone", "vsuspend -n gone", "vresume -n gone"),
        *("job list -n nowhere", "pod list -n nowhere", "jobflow list -n nowhere"),
        *("jobtemplate describe -n nowhere", "vjobs -N nowhere", "job view one -n nowhere"),
    ],
)
def test_what_is_not_there_ends_with_3(filled: FakeCluster, tmp_path: Path, line: str) -> None:
    before = dict(filled.objects)
    result = run(line, tmp_path)
    ended(result, 3)
    assert "does not exist" in result.stderr
    assert filled.objects == before


def test_an_empty_namespace_is_no_mistake(filled: FakeCluster, tmp_path: Path) -> None:
    filled.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quiet"}})
    result = run("job list -n quiet", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "No resources found\n")


@pytest.mark.parametrize("name", ACTS)
def test_a_cluster_that_is_not_there_ends_with_6(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG.format(port=port))
    result = run(ACTS[name].line, tmp_path, env={"KUBECONFIG": str(path)})
    ended(result, 6)
    said = result.stderr.splitlines()
    assert said[-1].startswith("Error: the cluster cannot be reached: ")
    assert said[-1].endswith(f": 127.0.0.1:{port}: Connection refused")


OTHERS: Final = [(name, code) for name, act in ACTS.items() for code in act.others]


@pytest.mark.parametrize(("name", "code"), OTHERS)
def test_codes_of_a_command_of_its_own(
    filled: FakeCluster, tmp_path: Path, name: str, code: int
) -> None:
    line, prepare = ACTS[name].others[code]
    if prepare is not None:
        prepare(filled)
    for kind in (JOB_FLOW, JOB_TEMPLATE):
        filled.put(obj(kind, "new"))
    ended(run(line, tmp_path), code)


def test_ctrl_c_ends_every_command_with_130(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(work: Coroutine[object, object, object]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("optsched.cli.base.connection.asyncio.run", interrupted)
    for line in ("queue list", "vjobs", "what-if -f {Job}"):
        result = run(line, tmp_path)
        assert (result.exit_code, result.stdout) == (130, "")


# --- codes of commands on files and of processes --------------------------------------------------


@pytest.mark.parametrize("name", ["scheduler", "controllers", "webhook"])
def test_processes_of_a_cluster_end_with_1_without_one(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path, "--kubeconfig", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path}: is a folder" in result.stderr


def test_a_demo_that_goes_wrong_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optsched.cli.demo_command._as_expected", lambda *_: False)
    monkeypatch.setattr("optsched.cli.demo_command.JOBS", (1,))
    result = CliRunner().invoke(main, ["demo", "--emulated"])
    assert result.exit_code == 1
    assert result.stderr.startswith("unexpected result: with gangs, every job should finish")


def test_solve_ends_with_3_where_no_plan_keeps_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        found = solve_one(*arguments, **options)
        certificate = replace(found.report.plan.certificate, engine=NOTHING)
        plan = replace(found.report.plan, certificate=certificate)
        return replace(found, report=replace(found.report, plan=plan))

    monkeypatch.setattr("optsched.cli.offline.solve_command.solve_one", refused)
    example = ROOT / "instances" / "examples" / "packing.yaml"
    arguments = ["solve", str(example), "--model", "volcano-compatible", "--solver", "none"]
    assert CliRunner().invoke(main, arguments).exit_code == 3


def test_an_assignment_that_can_not_be_written_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.txt"
    fill_for(monkeypatch, out.name)
    arguments = ["solve", str(MODEL), "--time-limit", "1", "--steps", "1", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 4
    assert "No space left on device" in result.stderr
