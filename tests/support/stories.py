"""Timelines for report tests: replays, large timelines, and timelines with harmful names."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.formats.snapshots.instance_files import read_instance
from optsched.formats.solve_result import FileSum, InstanceIdentity
from optsched.policy.load import load_policy
from optsched.policy.policy import definition
from optsched.session.offline import (
    Assignment,
    OfflineSettings,
    model_identity,
    parameters_of,
    solve_offline,
)
from optsched.session.solve_settings import limits_of, solver_of
from optsched.study.chargeback import Charging
from optsched.study.comparison.comparison_table import Comparison, Row
from optsched.study.comparison.plan_measures import measure_plan
from optsched.study.reports.solve_report import SolvedModel
from optsched.study.simulation.record import lines
from optsched.study.simulation.replay_trace import SimulationResult, Tally, as_result, read_given
from optsched.study.simulation.simulation_metrics import Measuring
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.timeline import (
    DONE,
    Job,
    Lanes,
    Run,
    Stay,
    Timeline,
    TimelineBuilder,
    series_of,
)
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.study.simulation.replay_trace import LoadedTrace

FAILURES = ROOT / "instances" / "traces" / "failures.yaml"
HARM = '</script><img src=x onerror="window.harmed=1">\'&amp;{{7*7}}'


def model(name: str) -> Policy:
    """Return the policy of a built-in model."""
    return load_policy(name, lambda path: path.read_text())


def base() -> dict[str, Any]:
    """Return the model definition with which reports compare other models."""
    return definition(model("volcano-default"))


def told(given: LoadedTrace, policy: Policy) -> tuple[dict[str, Any], Timeline]:
    """Return the result and the timeline of a trace under a model."""
    simulation = Simulation(given.trace, policy, Options())
    measuring, telling, tally = Measuring(given.trace), TimelineBuilder(given.trace), Tally()
    charging = Charging(given.trace)
    while (events := simulation.step()) is not None:
        tally.add_events(lines(events), len(events))
        for event in events:
            measuring.add_event(event)
            telling.add_event(event)
            charging.add_event(event)
    played = SimulationResult(
        measuring.metrics([]),
        charging.total(simulation.now_ms),
        tally,
        is_complete=True,
        ended_at_ms=simulation.now_ms,
        faults={},
        wall_seconds=0.0,
    )
    timeline = telling.build(simulation.now_ms)
    return as_result(given, policy, Options(), 0, played), timeline


def failures() -> tuple[dict[str, Any], Timeline]:
    """Return the result and the timeline of the trace with a failing node."""
    given = replace(read_given(str(FAILURES)), source="failures.yaml")
    return told(given, model("volcano-compatible"))


def harmful() -> tuple[dict[str, Any], Timeline]:
    """Return the same result and timeline, with names that contain markup."""
    result, timeline = failures()
    jobs = [replace(job, key=f"{job.key}{HARM}") for job in timeline.jobs]
    names = {"nodes": tuple(f"{n}{HARM}" for n in timeline.nodes)}
    queues = tuple(f"{q}{HARM}" for q in timeline.queues)
    result["trace"]["name"] = f"failures{HARM}"
    result["faults"] = {HARM: 2}
    result["trace"]["left_out"] = [HARM]
    return result, replace(timeline, jobs=jobs, queues=queues, **names)


LONG = "a-team-that-trains-large-language-models-in-the-north-hall-of-2026"
NAMES = (LONG, "[/b]", "<script>alert(1)</script>", "研究チーム-量子計算-Überprüfung-пример")


def wordy() -> tuple[dict[str, Any], Timeline]:
    """Return a result with long names, names in many scripts and names with markup.

    Two gangs wait until the end.
    """
    result, timeline = failures()
    jobs = [
        replace(job, key=f"{NAMES[i % 4]}/{NAMES[(i + 1) % 4]}-{i}")
        for i, job in enumerate(timeline.jobs)
    ]
    used = sorted({job.queue for job in timeline.jobs})
    fresh = dict(zip(used, (LONG, NAMES[3]), strict=True))
    queues = tuple(fresh.get(i, name) for i, name in enumerate(timeline.queues))
    wait = [
        Job(f"{LONG}/{LONG}-waits-{i}", queue, 2, 16_000, 3_600_000 * (i + 1))
        for i, queue in enumerate(used)
    ]
    reasons = {wait[0].key: ("NotEnoughResources", f"room for 0 of 2 pods on {LONG}")}
    nodes = tuple(f"{NAMES[i % 4]}-{i}.example.org" for i in range(len(timeline.nodes)))
    made = {"nodes": nodes, "queues": queues, "reasons": reasons}
    return result, replace(timeline, jobs=[*jobs, *wait], **made)


def wordy_cluster(folder: Path) -> Path:
    """Write the example packing problem with long names to a folder, and return its path."""
    text = (ROOT / "instances" / "examples" / "packing.yaml").read_text(encoding="utf-8")
    for name in ("whole-cluster", "train-a", "gpu-1"):
        text = text.replace(name, f"{name}-{LONG}"[:63])
    path = folder / "wordy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def large(num_jobs: int, num_nodes: int, num_queues: int = 11) -> Timeline:
    """Return gangs of one task with 1 to 8 GPUs that share nodes, from a fixed seed."""
    rng = np.random.default_rng(7)
    end_ms = 10 * 86_400_000
    free = np.zeros((num_nodes, 8), dtype=np.int64)
    stays, jobs = [], []
    for number in range(num_jobs):
        submit = int(end_ms * number / num_jobs * 0.8)
        gpus, node = int(rng.choice([1, 2, 4, 8])), int(rng.integers(num_nodes))
        lanes = tuple(sorted(np.argsort(free[node], kind="stable")[:gpus].tolist()))
        start = max(submit, int(free[node, list(lanes)].max()))
        end = min(start + int(rng.exponential(4e7)) + 1000, end_ms)
        queue = int(rng.integers(num_queues))
        job = Job(f"jobs/job-{number:06d}", queue, 1, gpus * 1000, submit)
        if start < end:
            free[node, list(lanes)] = end
            job.runs.append(Run(start, end, DONE))
            job.done_ms = end
            stays.append(Stay(number, f"{job.key}-0", node, lanes, 1000, 0, start, end, DONE))
        jobs.append(job)
    return Timeline(
        tuple(f"node-{i:05d}" for i in range(num_nodes)),
        tuple(f"queue-{i}" for i in range(num_queues)),
        Lanes("GPU", (8,) * num_nodes, (1000,) * num_nodes),
        sorted(stays, key=lambda s: s.from_ms),
        jobs,
        np.array([[0.1 / num_nodes, 1 / num_nodes / 8]]),
        [(3, end_ms // 4, end_ms // 2)],
        end_ms,
        [(end_ms * i // 500, (500 - i) / 500, (500 - i) / 1000) for i in range(500)],
    )


def compared(num_seeds: int = 3) -> Comparison:
    """Return a comparison of two models on one trace.

    The figures of one replay are scaled by model and seed.
    """
    result, timeline = failures()
    played = {**result, "series": series_of(timeline)}
    models = {"volcano-compatible": 1.0, "shortest-remaining": 0.8}
    rows = [
        Row(name, "failures.yaml", seed, _changed(played, name, factor ** (1 + seed / 3), seed))
        for name, factor in models.items()
        for seed in range(num_seeds)
    ]
    return Comparison(tuple(models), rows, {}, is_complete=True)


def _changed(played: dict[str, Any], name: str, factor: float, seed: int) -> dict[str, Any]:
    found = deepcopy(played)
    metrics, series = found["metrics"], found["series"]
    found["model"] |= {"name": name, "definition": definition(model(name))}
    for key in ("jct_s", "queueing_s"):
        metrics[key] = {k: v * factor * (1 + seed) for k, v in metrics[key].items()}
        series[key] = [v * factor * (1 + seed) for v in series[key]]
    metrics["makespan_s"] *= 2 - factor
    metrics["allocation"] *= 0.9 + factor / 10
    metrics["preemptions"] += seed if name == "shortest-remaining" else 0
    return found


def solved(instance: str, *names: str) -> tuple[Snapshot, list[SolvedModel]]:
    """Return an example's snapshot and the plans of some models, limited by solver work."""
    path = ROOT / "instances" / "examples" / instance
    snapshot = read_instance(path).snapshot
    return snapshot, [answered(snapshot, model(name), path) for name in names]


def answered(snapshot: Snapshot, policy: Policy, path: Path) -> SolvedModel:
    """Return the result of one model for a snapshot."""
    limits = limits_of(policy, None, deterministic=True)
    assignment = Assignment(
        InstanceIdentity(path.name, (FileSum(path.name, "0" * 64),)),
        model_identity(policy, lambda file: file.read_text()),
        parameters_of(policy, limits),
        {"optsched": "0.0"},
        ("optsched", "solve", path.name),
    )
    with solver_of(policy) as solver:
        settings = OfflineSettings(None, solver, limits)
        report, result = solve_offline(snapshot, policy, assignment, settings)
    return SolvedModel(result, definition(policy), measure_plan(snapshot, report.plan))
