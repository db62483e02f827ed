"""Replay a trace that the user names; the result includes the settings of the replay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from optsched import __version__
from optsched.cluster.trace import sound_trace
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.folders import list_files
from optsched.formats.snapshots.instance_files import read_instance
from optsched.formats.traces.trace_file import (
    describe_unknown_table,
    is_trace_file,
    read_published_trace,
    read_trace_file,
)
from optsched.policy.policy import describe
from optsched.study.chargeback import Charging
from optsched.study.comparison.model_definitions import definition
from optsched.study.generators.synthetic_traces import synthetic
from optsched.study.simulation.observed_trace import trace_of, trace_of_record
from optsched.study.simulation.record import lines
from optsched.study.simulation.simulation_metrics import Measuring, as_json
from optsched.study.simulation.simulator import Options, Simulation
from optsched.study.simulation.timeline import TimelineBuilder
from optsched.units.input_errors import why_absent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.snapshot import Node
    from optsched.cluster.trace import Trace, TraceProblem
    from optsched.formats.files.diagnostics import ObjectProblem
    from optsched.formats.snapshots.instance_files import Instance
    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock
    from optsched.solver.cpsat.process import Solver
    from optsched.study.chargeback import Chargeback
    from optsched.study.simulation.simulation_metrics import JobTimes, Metrics
    from optsched.study.simulation.timeline import Timeline

PICTURES = "snapshot-*.yaml"
"""File name pattern of recorded snapshots in a folder: one snapshot per file, in name order."""

SYNTHETIC = "gavel:"
"""Prefix of the names of synthetic traces."""


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A trace, its source and digest, and the problems because of which objects were omitted."""

    trace: Trace
    source: str
    sha256: str
    problems: tuple[TraceProblem | ObjectProblem, ...] = ()


def read_given(
    source: str, trace_format: str | None = None, nodes: Path | None = None
) -> LoadedTrace:
    """Read the trace that a user names on the command line.

    Raises InstanceError if the trace cannot be read or contains no job to replay, and
    SyntheticError if the description of a synthetic trace is invalid.

    Parameters
    ----------
    source
        A file of kind Trace, manifests, recorded snapshots, a published trace, or `gavel:…` for a
        synthetic trace.
    trace_format
        A format in `TRACE_FORMATS` for a published trace.
    nodes
        A file with a trace or manifests, on whose nodes a published trace is replayed.

    """
    given = _read_given(source, trace_format, nodes)
    if not given.trace.arrivals:
        lines = [*map(str, given.problems), f"{source}: there is no job to replay"]
        raise InstanceError("\n".join(lines))
    return given


def _read_given(source: str, trace_format: str | None, nodes: Path | None) -> LoadedTrace:
    if nodes is not None and trace_format is None:
        raise InstanceError(
            f"{nodes}: only a published trace can be replayed on other nodes: give its format, or "
            "omit the nodes"
        )
    if source.startswith(SYNTHETIC):
        return LoadedTrace(synthetic(source), source, hashlib.sha256(source.encode()).hexdigest())
    path = Path(source)
    if reason := why_absent(path):
        raise InstanceError(f"{source}: {reason}")
    if trace_format is not None:
        machines, omitted = (None, ()) if nodes is None else _read_nodes(nodes)
        trace, problems = read_published_trace(trace_format, path, machines)
        return LoadedTrace(trace, source, _sha256(path), (*omitted, *problems))
    if path.is_file() and is_trace_file(path):
        trace, problems = read_trace_file(path)
        return LoadedTrace(trace, source, _sha256(path), problems)
    if path.is_dir() and any(path.glob(PICTURES)):
        read = read_pictures(path)
        trace, found = sound_trace(trace_of_record([each.snapshot for each in read], path.name))
        unread = (problem for each in read for problem in each.problems)
        return LoadedTrace(trace, source, _sha256(path), (*unread, *found))
    if path.suffix.lower() == ".csv" and (problem := describe_unknown_table(path)):
        raise InstanceError(problem)
    instance = read_instance(path)
    trace = trace_of(instance.snapshot, path.stem)
    return LoadedTrace(trace, source, _sha256(path), instance.problems)


def _read_nodes(path: Path) -> tuple[tuple[Node, ...], tuple[ObjectProblem | TraceProblem, ...]]:
    """Read the nodes from a trace or from manifests; return the nodes and the problems found."""
    if path.is_file() and is_trace_file(path):
        trace, problems = read_trace_file(path)
        return trace.nodes, problems
    instance = read_instance(path)
    if not instance.snapshot.nodes:
        lines = [*map(str, instance.problems), f"{path}: contains no nodes"]
        raise InstanceError("\n".join(lines))
    return instance.snapshot.nodes, instance.problems


def read_pictures(folder: Path) -> list[Instance]:
    """Read the recorded snapshots of a cluster, in the order of their file names.

    Raises InstanceError if there is no snapshot, if a snapshot cannot be read, or if the snapshots
    are not in chronological order.
    """
    read = [read_instance(picture) for picture in sorted(folder.glob(PICTURES))]
    if not read:
        raise InstanceError(f"{folder}: contains no snapshots of a cluster ({PICTURES})")
    back = next((b for a, b in pairwise(read) if b.snapshot.taken_ms < a.snapshot.taken_ms), None)
    if back is not None:
        raise InstanceError(f"{back.path}: is older than the file before it: name files by time")
    return read


def _sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, or of all files and file names in a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in list_files(path):
        whole.update(f"{file.relative_to(path)}\n{_sha256(file)}\n".encode())
    return whole.hexdigest()


# --- results --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """The number of events in a record, and its size and digest."""

    num_events: int = 0
    num_bytes: int = 0
    _sha256: Any = field(default_factory=hashlib.sha256)

    def add_events(self, text: str, num_events: int) -> None:
        """Add events to the totals; `text` contains their lines in the record."""
        data = text.encode()
        self._sha256.update(data)
        self.num_bytes += len(data)
        self.num_events += num_events

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the record."""
        found: str = self._sha256.hexdigest()
        return found


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a replay, which may be incomplete."""

    metrics: Metrics
    charges: Chargeback  # Charges per queue and user.
    tally: Tally
    is_complete: bool
    ended_at_ms: int  # Time at which the replay ended, in trace time.
    faults: Mapping[str, int]  # Number of occurrences of each plugin error and each plan violation.
    wall_seconds: float
    timeline: Timeline | None = None  # Timeline for charts; None if it was not requested.
    # Arrival, start and end of each gang, in order of arrival. Gangs that arrive during the warm-up
    # are omitted.
    jobs: tuple[JobTimes, ...] = ()


def play(
    given: LoadedTrace,
    policy: Policy,
    options: Options,
    *,
    warm_up_ms: int = 0,
    solver: Solver | None = None,
    clock: Clock,
) -> SimulationResult:
    """Replay a trace to its end and return the result."""
    began_s = clock.monotonic()
    simulation = Simulation(given.trace, policy, options, solver=solver, clock=clock)
    measuring, tally = Measuring(given.trace, warm_up_ms), Tally()
    charging, telling = Charging(given.trace, warm_up_ms), TimelineBuilder(given.trace)
    while (events := simulation.step()) is not None:
        tally.add_events(lines(events), len(events))
        for event in events:
            measuring.add_event(event)
            charging.add_event(event)
            telling.add_event(event)
    plan = simulation.last_plan
    return SimulationResult(
        measuring.metrics(simulation.session_seconds),
        charging.total(simulation.now_ms),
        tally,
        is_complete=True,
        ended_at_ms=simulation.now_ms,
        faults=simulation.faults,
        wall_seconds=clock.monotonic() - began_s,
        timeline=telling.build(simulation.now_ms, {} if plan is None else plan.pending),
        jobs=measuring.jobs,
    )


def as_result(
    given: LoadedTrace, policy: Policy, options: Options, warm_up_ms: int, played: SimulationResult
) -> dict[str, Any]:
    """Return the result of a replay as JSON, with the settings that reproduce it."""
    return {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "SimulationResult",
        "complete": played.is_complete,
        "versions": {
            "optsched": __version__,
            "python": python_version(),
            **{name: version(name) for name in ("numpy", "ortools", "scipy")},
        },
        "trace": {
            "name": given.trace.name,
            "source": given.source,
            "sha256": given.sha256,
            "jobs": len(given.trace.arrivals),
            "nodes": len(given.trace.nodes),
            "left_out": [str(p) for p in given.problems],
        },
        "model": {
            "name": policy.name,
            "sha256": fingerprint(policy),
            "definition": definition(policy),
        },
        "parameters": {
            "period_ms": options.period_ms or policy.budgets.period_ms,
            "until_ms": options.until_ms,
            "warm_up_ms": warm_up_ms,
            "seed": options.seed,
        },
        "record": {"events": played.tally.num_events, "sha256": played.tally.sha256},
        "ended_at_ms": played.ended_at_ms,
        "metrics": as_json(played.metrics),
        "gpu_hours": played.charges.as_json(),
        "faults": dict(played.faults),
        "wall_seconds": round(played.wall_seconds, 3),
    }


def fingerprint(policy: Policy) -> str:
    """Return the SHA-256 digest of a policy."""
    return hashlib.sha256(describe(policy).encode()).hexdigest()
