"""Stories for reports: played ones, large ones, and ones with names that mean harm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.study.chargeback import Charging
from optsched.study.comparison.grid import cells_of, read_traces
from optsched.study.comparison.table import Comparison
from optsched.study.definitions import definition
from optsched.study.metrics import Measuring
from optsched.study.replay import Played, Tally, as_result, read_given
from optsched.study.simulation.record import lines
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.story import DONE, Job, Lanes, Run, Stay, Story, Telling
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from optsched.policy.policy import Policy
    from optsched.study.replay import Given

FAILURES = ROOT / "instances" / "traces" / "failures.yaml"
HARM = '</script><img src=x onerror="window.harmed=1">\'&amp;{{7*7}}'


def model(name: str) -> Policy:
    """A shipped model."""
    return load_policy(name, lambda path: path.read_text())


def base() -> dict[str, Any]:
    """The definition that reports hold others against."""
    return definition(model("volcano-default"))


def told(given: Given, policy: Policy) -> tuple[dict[str, Any], Story]:
    """The result and the story of a trace under a model."""
    simulation = Simulation(given.trace, policy, Options())
    measuring, telling, tally = Measuring(given.trace), Telling(given.trace), Tally()
    charging = Charging(given.trace)
    while (events := simulation.step()) is not None:
        tally.take(lines(events), len(events))
        for event in events:
            measuring.take(event)
            telling.take(event)
            charging.take(event)
    played = Played(
        measuring.metrics([]),
        charging.found(simulation.now_ms),
        tally,
        is_complete=True,
        ended_at_ms=simulation.now_ms,
        faults={},
        wall_seconds=0.0,
    )
    story = telling.story(simulation.now_ms)
    return as_result(given, policy, Options(), 0, played), story


def failures() -> tuple[dict[str, Any], Story]:
    """Of the shipped trace with a node that fails."""
    given = replace(read_given(str(FAILURES)), source="failures.yaml")
    return told(given, model("volcano-compatible"))


def harmful() -> tuple[dict[str, Any], Story]:
    """The same, with names that want to be markup."""
    result, story = failures()
    jobs = [replace(job, key=f"{job.key}{HARM}") for job in story.jobs]
    names = {"nodes": tuple(f"{n}{HARM}" for n in story.nodes)}
    queues = tuple(f"{q}{HARM}" for q in story.queues)
    result["trace"]["name"] = f"failures{HARM}"
    result["faults"] = {HARM: 2}
    result["trace"]["left_out"] = [HARM]
    return result, replace(story, jobs=jobs, queues=queues, **names)


def large(num_jobs: int, num_nodes: int, num_queues: int = 11) -> Story:
    """Gangs of one task with 1 to 8 GPUs that share nodes in turn, from a fixed seed."""
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
    return Story(
        tuple(f"node-{i:05d}" for i in range(num_nodes)),
        tuple(f"queue-{i}" for i in range(num_queues)),
        Lanes("GPU", (8,) * num_nodes, (1000,) * num_nodes),
        sorted(stays, key=lambda s: s.from_ms),
        jobs,
        np.array([[0.1 / num_nodes, 1 / num_nodes / 8]]),
        [(3, end_ms // 4, end_ms // 2)],
        (),
        end_ms,
    )


def compared(num_seeds: int = 2) -> Comparison:
    """Two models on small synthetic traces."""
    options = Options(period_ms=1_800_000)
    policies = {n: model(n) for n in ("volcano-compatible", "shortest-remaining")}
    policies = {name: without_solver(policy) for name, policy in policies.items()}
    source = "gavel:jobs=25,nodes=1,load=1.3,estimated=1"
    cells = cells_of(policies, read_traces([source], range(num_seeds), None, None), options)
    return Comparison.of(cells, {c.key: c.played(_Still()) for c in cells}, {})


class _Still:
    """A clock that stands."""

    def monotonic(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return 0
