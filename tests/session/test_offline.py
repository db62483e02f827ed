"""Tests of solving with a result: history, stop reasons, gaps, and resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import (
    Certificate,
    Evict,
    Incumbent,
    LevelResult,
    LevelStatus,
    Progress,
    Sense,
    SolveStatus,
)
from optsched.formats.snapshots.instance_files import instance_identity, read_instance, versions
from optsched.formats.solve_result import SolveResult, read_result, write_result
from optsched.policy.load import load_policy, parse_policy
from optsched.session.offline import (
    Assignment,
    OfflineSettings,
    ResumeError,
    check_resumable,
    model_identity,
    parameters_of,
    solve_offline,
    solve_status_of,
)
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess, WorkerProcess
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.session.session import Report

PACKING = Path(__file__).parents[2] / "instances" / "examples" / "packing.yaml"
SNAPSHOT = read_instance(PACKING).snapshot
POLICY = load_policy("volcano-default", Path.read_text)
EXACT = Limits(budget_ms=None, num_workers=1)


def assignment(limits: Limits = EXACT) -> Assignment:
    return Assignment(
        instance_identity(PACKING),
        model_identity(POLICY, Path.read_text),
        parameters_of(POLICY, limits),
        versions("1"),
    )


def solved(settings: OfflineSettings | None = None) -> tuple[Report, SolveResult]:
    settings = settings or OfflineSettings(None, InProcess(), EXACT)
    return solve_offline(SNAPSHOT, POLICY, assignment(settings.limits), settings)


# --- history -------------------------------------------------------------------------------------


def of_level(progress: tuple[Progress, ...], level: str) -> list[tuple[int | None, int | None]]:
    return [(p.incumbent, p.bound) for p in progress if p.level == level]


def test_the_history_leads_from_the_pipeline_to_the_certificate() -> None:
    shown: list[Progress] = []
    report, result = solved(OfflineSettings(None, InProcess(), EXACT, show=shown.append))
    assert result.progress == tuple(shown)
    first, *_, last = of_level(result.progress, "admission, priority 0")
    assert first == (11, 32)
    assert last == (16, 16)
    for level in report.plan.certificate.levels:
        assert of_level(result.progress, level.name)[-1] == (level.value, level.bound)


def test_time_and_incumbents_never_go_back() -> None:
    _, result = solved()
    times = [p.at_s for p in result.progress]
    assert times == sorted(times)
    values = [value for value, _ in of_level(result.progress, "admission, priority 0")]
    assert values == sorted(values, key=lambda value: value or 0)


def test_without_a_clock_the_history_is_the_same_every_time() -> None:
    assert write_result(solved()[1]) == write_result(solved()[1])


def test_a_worker_process_tells_the_same(worker: WorkerProcess) -> None:
    settings = OfflineSettings(None, worker, EXACT)
    assert write_result(solved(settings)[1]) == write_result(solved()[1])


@pytest.fixture(scope="module")
def worker():
    found = WorkerProcess()
    assert found.wait_until_ready()
    yield found
    found.close()


def test_nobody_watches_a_live_session_and_nothing_is_kept() -> None:
    from optsched.session.session import SessionContext, run_session

    report = run_session(SNAPSHOT, POLICY, SessionContext(solver=InProcess(), limits=EXACT))
    assert (report.trace.progress, report.trace.incumbents) == ((), ())


# --- endings -------------------------------------------------------------------------------------


def test_a_proved_plan_is_complete() -> None:
    report, result = solved()
    assert report.plan.certificate.is_proved
    assert (result.ended, result.is_partial) == (SolveStatus.COMPLETE, False)


def test_who_stops_it_gets_the_pipelines_plan_and_a_partial_result() -> None:
    stopped = WorkerProcess(lambda: True)
    report, result = solved(OfflineSettings(None, stopped, EXACT, is_stopped=lambda: True))
    assert result.ended is SolveStatus.INTERRUPTED
    assert report.plan.certificate.stopped == "interrupted"
    assert len(report.plan.binds) == 3
    assert result.incumbents[0].binds == report.plan.binds


def certificate(value: int, bound: int) -> Certificate:
    level = LevelResult("a", "u", Sense.MAX, value, bound, LevelStatus.FEASIBLE)
    return Certificate((level,), "cp-sat", 0.0, "")


@pytest.mark.parametrize(
    ("value", "bound", "gap", "ended"),
    [
        (100, 101, None, SolveStatus.LIMIT),
        (100, 101, 0.01, SolveStatus.COMPLETE),
        (100, 102, 0.01, SolveStatus.LIMIT),
        (100, 100, None, SolveStatus.COMPLETE),
        (0, 1, 0.5, SolveStatus.LIMIT),
    ],
)
def test_a_level_within_the_gap_needs_no_more(
    value: int, bound: int, gap: float | None, ended: SolveStatus
) -> None:
    limits = replace(EXACT, gap=gap)
    assert solve_status_of(certificate(value, bound), limits, optimises=True) is ended
    assert (
        solve_status_of(certificate(value, bound), limits, optimises=False) is SolveStatus.COMPLETE
    )


def test_a_wide_gap_ends_at_the_first_plan_and_the_certificate_says_so() -> None:
    wide = replace(EXACT, gap=0.99)
    report, result = solved(OfflineSettings(None, InProcess(), wide))
    stopped = report.plan.certificate.stopped
    assert stopped == "every level within 99 % of its bound"
    assert result.ended is SolveStatus.COMPLETE
    for level in report.plan.certificate.levels:
        assert wide.suffices(level.value, level.bound)


# --- keeping and going on ------------------------------------------------------------------------


def test_what_is_kept_on_the_way_is_enough_to_go_on_from() -> None:
    kept: list[SolveResult] = []
    _, whole = solved(OfflineSettings(None, InProcess(), EXACT, keep=kept.append))
    assert all(each.ended is SolveStatus.RUNNING and each.plan is None for each in kept)
    assert [read_result(write_result(each))[0] for each in kept] == kept
    report, resumed = solved(OfflineSettings(None, InProcess(), EXACT, earlier=kept[-1]))
    assert report.plan.binds.keys() == {k for i in whole.incumbents for k in i.binds}
    assert resumed.progress[: len(kept[-1].progress)] == kept[-1].progress
    assert resumed.ended is SolveStatus.COMPLETE


def test_a_finished_result_needs_no_search_at_all() -> None:
    _, whole = solved()
    never = replace(EXACT, deterministic=1e-9)
    report, resumed = solved(OfflineSettings(None, InProcess(), never, earlier=whole))
    certificate = report.plan.certificate
    assert (certificate.engine, certificate.stopped) == ("resumed", "proved before")
    assert report.plan.certificate.is_proved
    assert resumed.plan is not None
    assert whole.plan is not None
    assert resumed.plan.binds == whole.plan.binds


@pytest.mark.parametrize(
    "binds",
    [
        {"ml/pair-0": "gpu-1", "ml/pair-1": "gpu-1", "ml/train-a-0": "gpu-1"},
        {"ml/pair-0": "no-node"},
        {"ml/nobody-0": "gpu-1"},
        {},
    ],
    ids=["too-full", "no-node", "no-pod", "worse"],
)
def test_an_incumbent_that_breaks_a_rule_or_is_worse_is_not_believed(binds: dict[str, str]) -> None:
    _, whole = solved()
    wrong = Incumbent(1, binds, whole.incumbents[0].levels)
    earlier = replace(whole, incumbents=(wrong,))
    report, resumed = solved(OfflineSettings(None, InProcess(), EXACT, earlier=earlier))
    assert report.trace.violations == ()
    assert report.plan.certificate.is_proved
    assert report.plan.certificate.engine == "cp-sat, node by node"
    assert resumed.plan is not None


def test_other_instances_models_and_kinds_of_time_are_refused() -> None:
    _, whole = solved()
    given = assignment()
    check_resumable(whole, given)
    others = {
        "instance": replace(given, instance=replace(given.instance, files=())),
        "model": replace(given, model=replace(given.model, text="other")),
        "schedulers": replace(given, parameters=replace(given.parameters, schedulers=("me",))),
        "deterministic": replace(given, parameters=replace(given.parameters, time_limit_s=1.0)),
    }
    for field, other in others.items():
        with pytest.raises(ResumeError, match=field):
            check_resumable(whole, other)


# --- identities ----------------------------------------------------------------------------------


def test_versions_name_what_solves() -> None:
    found = versions("0.1")
    assert found["optsched"] == "0.1"
    assert set(found) == {"optsched", "python", "ortools", "numpy", "scipy"}
    assert all(number[0].isdigit() for number in found.values())


def test_a_folder_is_known_by_its_files_wherever_it_is(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "a.yaml").write_text("kind: Node")
        (folder / "sub" / "b.yml").write_text("kind: Pod")
        (folder / "notes.txt").write_text(name)
    one, two = (instance_identity(tmp_path / name) for name in ("one", "two"))
    assert [f.path for f in one.files] == ["a.yaml", "sub/b.yml"]
    assert one.sha256 == two.sha256
    (tmp_path / "two" / "a.yaml").write_text("kind: Pod")
    assert instance_identity(tmp_path / "two").sha256 != one.sha256


def test_definitions_are_told_without_passwords() -> None:
    text = (
        'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n'
        "metrics:\n  type: elasticsearch\n  elasticsearch.password: hush\n"
    )
    policy = parse_policy(text, "mine.conf")
    found = model_identity(policy, lambda path: text).text
    assert "hush" not in found
    assert "type: elasticsearch\n  elasticsearch.password: '***'\n" in found
    assert model_identity(POLICY, Path.read_text).text.startswith("#")


# --- several searches ----------------------------------------------------------------------------


def crowded() -> Snapshot:
    """Return three nodes full of low-priority tasks, and a high-priority gang that needs two."""
    low = [gang(f"low{i}", ("w", 1, shape(4)), priority=1) for i in range(6)]
    assigned = [replace(g, tasks=(running(g.tasks[0], f"n{i // 2}"),)) for i, g in enumerate(low)]
    waits = [gang("big", ("w", 2, shape(6)), priority=9), gang("small", ("w", 1, shape(1)))]
    return cluster([node(f"n{i}", 8) for i in range(3)], [*assigned, *waits])


def test_a_session_that_searches_again_tells_so_and_goes_on_from_each() -> None:
    settings = OfflineSettings(None, InProcess(), EXACT)
    report, result = solve_offline(crowded(), POLICY, assignment(), settings)
    assert len([a for a in report.plan.actions if isinstance(a, Evict)]) == 4
    assert [each.turn for each in result.incumbents] == [1, 2]
    assert {p.turn for p in result.progress} == {1, 2}
    told = {(p.turn, p.level): p.incumbent for p in result.progress}
    for level in result.incumbents[1].levels:
        assert told[2, level.name] == level.value
    again, resumed = solve_offline(
        crowded(), POLICY, assignment(), replace(settings, earlier=result)
    )
    assert set(again.plan.actions) == set(report.plan.actions)
    assert resumed.progress == result.progress
