"""The Python API: build or read a cluster, solve it, replay traces, and explain plans.

Every name in `__all__` can also be imported from `optsched`. The functions work on immutable values
and never access a live cluster.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from optsched import __version__
from optsched.api.wellknown import HOSTNAME
from optsched.cluster.decisions import Allocate, Plan, Progress
from optsched.cluster.snapshot import DEFAULT_QUEUE, Gang, Node, Queue, Snapshot, uniform_gang
from optsched.cluster.task import TaskShape
from optsched.cluster.trace import Arrival, Trace, sound_trace
from optsched.controllers.job.preview import preview_jobs
from optsched.formats.codec.pods.reader import DEFAULT_NAMESPACE, SCHEDULER_NAMES
from optsched.formats.codec.queues import with_builtin_queues
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.snapshots.instance_files import (
    instance_identity,
    read_instance,
    snapshot_identity,
    versions,
)
from optsched.formats.solve_result import SolveResult
from optsched.kube.runtime.timing import SystemClock
from optsched.policy import load
from optsched.policy.catalogue import PluginSource
from optsched.policy.diagnostic import PolicyError
from optsched.policy.policy import Policy
from optsched.problem.compile import compile_problem as compile_snapshot
from optsched.problem.problem import Problem
from optsched.session.offline import (
    Assignment,
    OfflineSettings,
    ResumeError,
    check_resumable,
    model_identity,
    parameters_of,
    solve_offline,
)
from optsched.session.search_history import Listener
from optsched.session.session import SessionContext, run_session
from optsched.session.solve_settings import limits_of, solver_of
from optsched.study.comparison.comparison_table import Comparison
from optsched.study.comparison.executors import ExecutorError, LocalExecutor, local_cluster
from optsched.study.comparison.grid import cells_of, read_traces
from optsched.study.simulation.replay_trace import LoadedTrace, SimulationResult, play, read_given
from optsched.study.simulation.simulation_metrics import JobTimes
from optsched.study.simulation.simulator import Options
from optsched.study.simulation.synthetic_traces import SyntheticError
from optsched.units import MAX_BASE, DurationError, parse_duration_ms, parse_resource_list
from optsched.units.input_errors import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.formats.solve_result import InstanceIdentity
    from optsched.study.comparison.executors import Executor
    from optsched.study.comparison.grid import Cell

__all__ = [
    "ArgumentError",
    "Comparison",
    "DurationError",
    "ExecutorError",
    "Gang",
    "InstanceError",
    "JobTimes",
    "LoadedTrace",
    "Node",
    "Plan",
    "Policy",
    "PolicyError",
    "Problem",
    "Progress",
    "Queue",
    "ResumeError",
    "SimulationResult",
    "Snapshot",
    "SolveResult",
    "SyntheticError",
    "Trace",
    "arrival",
    "compare",
    "compile_problem",
    "explain",
    "gang",
    "load_policy",
    "node",
    "queue",
    "read",
    "read_trace",
    "simulate",
    "snapshot",
    "solve",
    "solve_result",
    "trace",
]


class ArgumentError(ValueError):
    """Raised for an invalid argument; the message states its name, value and accepted values."""


_P = ParamSpec("_P")
_Result = TypeVar("_Result")

RENAMED: Final[Mapping[str, type]] = {
    "Given": LoadedTrace,
    "PlaceError": ExecutorError,
    "Played": SimulationResult,
}
"""Deprecated class names, each with the class that replaces it."""


def __getattr__(name: str) -> type:
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = RENAMED[name]
    message = f"optsched.{name} is deprecated: use {kind.__name__}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return kind


def _renaming(**new_names: str) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Return a decorator that accepts deprecated argument names and issues a DeprecationWarning."""

    def decorate(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        @functools.wraps(function)
        def accept_earlier_names(*arguments: _P.args, **named: _P.kwargs) -> _Result:
            for old, new in new_names.items():
                if old in named:
                    message = f"{function.__name__}({old}=…) is deprecated: use {new}"
                    warnings.warn(message, DeprecationWarning, stacklevel=2)
                    named[new] = named.pop(old)
            return function(*arguments, **named)

        return accept_earlier_names

    return decorate


# --- arguments -----------------------------------------------------------------------------------

_PATH: Final = "a path"
_DURATION: Final = "a duration such as 60s or 1h30m"
_MOST_SHOWN: Final = 60
_MOST_SEED: Final = 2**31 - 1
_MOST_SECONDS: Final = 10**9


def _check(is_valid: bool, name: str, value: object, accepted: str) -> None:
    if not is_valid:
        text = repr(value)
        text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
        raise ArgumentError(f"{name}: {text} is not {accepted}")


def _check_kind(name: str, value: object, kinds: tuple[type, ...], accepted: str) -> None:
    _check(isinstance(value, kinds), name, value, accepted)


def _check_path(
    name: str, value: object, accepted: str = _PATH, others: tuple[type, ...] = ()
) -> None:
    """Check that a value is a local path, or an instance of a type in `others`."""
    _check_kind(name, value, (*others, str, Path), accepted)
    if isinstance(value, str | Path):
        text = str(value)
        _check(bool(text) and "\0" not in text, name, value, accepted)
        if is_url(text):
            raise ArgumentError(f"{name}: {text!r} is a URL: download it, and name the file")


def _check_texts(name: str, values: object) -> None:
    """Check that a value is None, or a mapping whose keys and values are strings."""
    accepted = "a mapping from names to strings"
    is_mapping = isinstance(values, Mapping) and all(
        isinstance(each, str) for pair in values.items() for each in pair
    )
    _check(values is None or is_mapping, name, values, accepted)


def _check_name(name: str, value: object, accepted: str = "a name") -> None:
    _check(isinstance(value, str) and bool(value) and value.isprintable(), name, value, accepted)


def _check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    is_inside = is_integer and least <= value and (most is None or value <= most)  # type: ignore[operator]
    upwards = f"from {least} on" if most is None else f"from {least} to {most}"
    _check(is_inside, name, value, f"a whole number {upwards}")


def _check_number(name: str, value: object, below: float, accepted: str) -> None:
    """Check that a value is None, or a number of at least 0 and less than `below`."""
    if value is not None:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        _check(is_number and 0 <= value < below, name, value, accepted)  # type: ignore[operator]


def _listed(name: str, values: object, kinds: tuple[type, ...], accepted: str) -> list[Any]:
    """Check the type of each item of an iterable, and return the items as a list."""
    is_iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    _check(is_iterable, name, values, f"a list: each is {accepted}")
    found: list[Any] = list(values)  # type: ignore[call-overload]
    for position, each in enumerate(found):
        _check_kind(f"{name}[{position}]", each, kinds, accepted)
    return found


def _check_model(model: object, accepted: str, others: tuple[type, ...] = ()) -> None:
    # `load_policy` rejects an empty name with an error that lists the names of models.
    if model != "":
        _check_path("model", model, accepted, others)


def _check_search(
    time_limit: object, gap: object, seed: object, progress: object, model: object
) -> None:
    _check_model(model, f"the name of a model, {_PATH} or a policy", (Policy,))
    accepted = f"a number of seconds from 0 to {_MOST_SECONDS}, or None"
    _check_number("time_limit", time_limit, _MOST_SECONDS + 1, accepted)
    _check_number("gap", gap, 1, "a fraction from 0 to below 1, or None")
    _check_integer("seed", seed, 0, _MOST_SEED)
    _check(progress is None or callable(progress), "progress", progress, "a function, or None")


# --- building ------------------------------------------------------------------------------------


def node(
    name: str, allocatable: Mapping[str, object], labels: Mapping[str, str] | None = None
) -> Node:
    """Return a node without running tasks.

    Parameters
    ----------
    name
        Name of the node, also used as its label `kubernetes.io/hostname`.
    allocatable
        Allocatable resources as Kubernetes quantities: `{"cpu": "96", "memory": "768Gi"}`.
    labels
        Labels in addition to `kubernetes.io/hostname`.

    Raises
    ------
    ArgumentError
        The name is empty, a quantity cannot be parsed, or a label value is not a string.

    """
    _check_name("name", name)
    _check_texts("labels", labels)
    return Node(
        name, _amounts("allocatable", allocatable), labels={HOSTNAME: name, **(labels or {})}
    )


def queue(
    name: str,
    *,
    weight: int = 1,
    parent: str = "root",
    capability: Mapping[str, object] | None = None,
    deserved: Mapping[str, object] | None = None,
    guarantee: Mapping[str, object] | None = None,
) -> Queue:
    """Return a queue; resource amounts are given as Kubernetes quantities.

    Parameters
    ----------
    weight
        Weight of the queue, for models that divide resources between queues by weight.
    capability, deserved, guarantee
        Maximum, deserved and guaranteed amounts, keyed by resource name. Without `capability` the
        queue has no limit. `deserved` and `guarantee` default to zero.

    Raises
    ------
    ArgumentError
        A name, the weight or a quantity is invalid.

    """
    _check_name("name", name)
    _check_name("parent", parent)
    _check_integer("weight", weight, 1)
    return Queue(
        name,
        weight=weight,
        parent=parent,
        capability=None if capability is None else _amounts("capability", capability),
        deserved=_amounts("deserved", {} if deserved is None else deserved),
        guarantee=_amounts("guarantee", {} if guarantee is None else guarantee),
    )


def gang(
    name: str,
    tasks: int,
    request: Mapping[str, object],
    *,
    min_available: int | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    annotations: Mapping[str, str] | None = None,
) -> Gang:
    """Return a pending gang whose tasks all have the same request.

    Parameters
    ----------
    name
        `namespace/name`; a name without a namespace is in `default`.
    tasks, request
        The number of tasks, and the request of each task as Kubernetes quantities.
    min_available
        Minimum number of tasks that must start together, or None for all tasks.
    annotations
        Annotations of the gang's PodGroup, such as `{"optsched.io/running-estimate": "2h"}`.

    Raises
    ------
    ArgumentError
        A name, a quantity or an annotation is invalid, or a number is out of range.

    """
    accepted = "namespace/name, or a name"
    _check_name("name", name, accepted)
    _check(name.count("/") <= 1 and all(name.split("/")), "name", name, accepted)
    _check_name("queue", queue)
    _check_integer("tasks", tasks, 1)
    minimum = tasks if min_available is None else min_available
    _check_integer("min_available", minimum, 0, tasks)
    _check_integer("priority", priority, -MAX_BASE)
    _check_texts("annotations", annotations)
    key = name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}"
    return replace(
        uniform_gang(key, TaskShape(_amounts("request", request)), tasks, priority=priority),
        queue=queue,
        min_member=minimum,
        annotations=annotations or {},
    )


def snapshot(
    nodes: Iterable[Node], gangs: Iterable[Gang], queues: Iterable[Queue] = (), taken_ms: int = 0
) -> Snapshot:
    """Return the snapshot of a cluster; the queue `default` is added if it is missing.

    Parameters
    ----------
    nodes, gangs, queues
        Results of `node`, `gang` and `queue`, in any order.
    taken_ms
        Time of the snapshot in epoch milliseconds; waiting times are measured up to `taken_ms`.

    Raises
    ------
    ArgumentError
        An argument has the wrong type, or two nodes, gangs or queues have the same name.

    """
    nodes = _listed("nodes", nodes, (Node,), "a result of node")
    gangs = _listed("gangs", gangs, (Gang,), "a result of gang")
    queues = _listed("queues", queues, (Queue,), "a result of queue")
    names = [[n.name for n in nodes], [g.key for g in gangs], [q.name for q in queues]]
    for what, listed in zip(("node", "gang", "queue"), names, strict=True):
        _check_none_twice(what, listed)
    _check_integer("taken_ms", taken_ms, 0)
    return Snapshot(
        taken_ms=taken_ms,
        nodes=tuple(sorted(nodes, key=lambda n: n.name)),
        gangs=tuple(sorted(gangs, key=lambda g: g.key)),
        queues=with_builtin_queues(queues),
    )


def arrival(gang: Gang, at: str, duration: str | None = None) -> Arrival:
    """Return the arrival of a gang, for use in a trace.

    Parameters
    ----------
    at, duration
        Arrival time relative to the start of the trace, and run time, such as `90s` or `2h30m`.
        Without a duration the gang runs forever. Plugins cannot read `duration`; they only read the
        gang's annotation `optsched.io/running-estimate`.

    Raises
    ------
    DurationError
        `at` or `duration` is not a duration, or is negative.
    ArgumentError
        `gang` was not returned by the function `gang`, or a duration is not a string.

    """
    _check_kind("gang", gang, (Gang,), "a result of gang")
    at_ms = _not_negative_ms("at", at)
    stamped = replace(gang, created_ms=at_ms, waiting_since_ms=at_ms)
    runs_ms = None if duration is None else _not_negative_ms("duration", duration)
    return Arrival(at_ms, stamped, runs_ms)


def trace(
    name: str, nodes: Iterable[Node], arrivals: Iterable[Arrival], queues: Iterable[Queue] = ()
) -> LoadedTrace:
    """Return a trace of arrivals for `simulate` and `compare`.

    Jobs that cannot be replayed are skipped, and listed in the trace's attribute `problems`.

    Parameters
    ----------
    nodes, arrivals, queues
        Results of `node`, `arrival` and `queue`, in any order. The queue `default` always exists.

    Raises
    ------
    ArgumentError
        An item has the wrong type.

    """
    _check_name("name", name)
    nodes = _listed("nodes", nodes, (Node,), "a result of node")
    arrivals = _listed("arrivals", arrivals, (Arrival,), "a result of arrival")
    queues = _listed("queues", queues, (Queue,), "a result of queue")
    ordered = tuple(sorted(arrivals, key=lambda a: a.at_ms))
    whole = Trace(name, tuple(nodes), with_builtin_queues(queues), ordered)
    found, problems = sound_trace(whole)
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    return LoadedTrace(found, name, digest, problems)


def _amounts(name: str, quantities: Mapping[str, object]) -> Amounts:
    _check_kind(name, quantities, (Mapping,), "resource names with quantities")
    found, errors = parse_resource_list(quantities, name, whole_devices=True)
    if errors:
        raise ArgumentError("; ".join(map(str, errors)))
    return tuple(sorted(found.items()))


# --- reading -------------------------------------------------------------------------------------


def read(path: str | Path) -> Snapshot:
    """Return the snapshot of a manifest file, a folder of manifests or the openb trace.

    Only pods with the `schedulerName` volcano or optsched are scheduled. Objects that cannot be
    read are skipped; `optsched.formats.snapshots.instance_files.read_instance` lists them.

    Raises
    ------
    InstanceError
        The path contains no objects to schedule.
    ArgumentError
        `path` is neither a string nor a `Path`.

    """
    _check_path("path", path)
    return read_instance(Path(path), preview=preview_jobs).snapshot


def read_trace(
    source: str | Path, trace_format: str | None = None, nodes: str | Path | None = None
) -> LoadedTrace:
    """Return the trace that `optsched simulate` would replay; see `docs/simulate.md`.

    Parameters
    ----------
    source
        A file of kind Trace, manifests, a published trace, or `gavel:…` for a synthetic trace.
    trace_format, nodes
        The format of a published trace, and the file that lists the nodes for its replay.

    Raises
    ------
    InstanceError, SyntheticError
        The trace does not exist, or none of its jobs can be replayed.
    ArgumentError
        `source` or `nodes` is neither a string nor a `Path`.

    """
    _check_path("source", source, f"{_PATH} or gavel:…")
    if nodes is not None:
        _check_path("nodes", nodes)
    return read_given(str(source), trace_format, None if nodes is None else Path(nodes))


def load_policy(model: str | Path) -> Policy:
    """Load the policy that a model defines.

    Parameters
    ----------
    model
        The name of a shipped model, or the path of a model file or Volcano configuration file.

    Raises
    ------
    PolicyError
        The model does not exist or has errors; the message names the line and the accepted values.
    ArgumentError
        `model` is neither a name nor a path.

    """
    _check_model(model, f"the name of a model or {_PATH}")
    return load.load_policy(str(model), lambda path: path.read_text("utf-8"), PluginSource())


# --- deciding ------------------------------------------------------------------------------------


def solve(
    cluster: Snapshot | str | Path,
    model: str | Path | Policy = "volcano-default",
    *,
    time_limit: float | None = None,
    gap: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """Return the plan that one session makes for a cluster, as `optsched solve` does.

    Parameters
    ----------
    cluster
        A result of `read` or `snapshot`, or a path that `read` accepts.
    model
        The name of a model, the path of a model file, or a policy.
    time_limit
        Wall-clock limit of the solver in seconds, or None for the model's deterministic work limit.
        With a deterministic limit, the same cluster always has the same plan.
    gap
        Relative gap |bound − value| / max(1, |value|) at which the solver stops optimizing a level,
        such as 0.01. If the gap is None, each level is solved to optimality.
    seed
        Random seed of the solver.
    progress
        Progress callback, called for each improvement of a level's value or bound.

    Returns
    -------
    Plan
        Verified actions, the certificate, and the reason why each waiting gang waits.

    Raises
    ------
    PolicyError
        The model has errors; the error message locates the errors.
    ArgumentError
        An argument has the wrong type, or is out of range.

    """
    _check_path("cluster", cluster, f"a snapshot or {_PATH}", (Snapshot,))
    _check_search(time_limit, gap, seed, progress, model)
    seed, policy = int(seed), _policy(model)
    limits = limits_of(policy, time_limit, deterministic=time_limit is None, seed=seed, gap=gap)
    clock = None if time_limit is None else SystemClock()
    watch = None if progress is None else Listener(progress)
    with solver_of(policy) as worker:
        around = SessionContext(clock, worker, limits=limits if worker else None, watch=watch)
        taken = cluster if isinstance(cluster, Snapshot) else read(cluster)
        return run_session(taken, policy, around).plan


def solve_result(
    cluster: Snapshot | str | Path,
    model: str | Path | Policy = "volcano-default",
    *,
    time_limit: float | None = None,
    gap: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    resume: SolveResult | None = None,
) -> SolveResult:
    """Return the plan of `solve` with its search history and all data to reproduce the solve.

    Parameters
    ----------
    cluster
        A result of `read` or `snapshot`, or a path that `read` accepts. For a path, the
        `SolveResult` names the files that were read, as does the result file of `optsched solve`.
    model, time_limit, gap, seed, progress
        The same as the parameters of `solve`.
    resume
        An earlier result for the same cluster and model; the solve continues from this result.

    Returns
    -------
    SolveResult
        The plan with its certificate, versions, parameters, checksums and search history;
        `optsched.formats.solve_result.write_result` writes it to a file.

    Raises
    ------
    PolicyError
        The model has errors, or its file is missing; the error message locates the errors.
    ResumeError
        `resume` was made for another cluster or model; the message names the field that differs.
    InstanceError, OSError
        The path contains no objects to schedule, or a file cannot be read.
    ArgumentError
        An argument has the wrong type, or is out of range.

    """
    _check_path("cluster", cluster, f"a snapshot or {_PATH}", (Snapshot,))
    _check_search(time_limit, gap, seed, progress, model)
    if resume is not None:
        _check_kind("resume", resume, (SolveResult,), "a result of solve_result, or None")
    seed, policy = int(seed), _policy(model)
    limits = limits_of(policy, time_limit, deterministic=time_limit is None, seed=seed, gap=gap)
    taken, identity, names = _instance(cluster)
    assignment = Assignment(
        instance=identity,
        model=model_identity(policy, lambda path: path.read_text(encoding="utf-8")),
        parameters=parameters_of(policy, limits, names),
        versions=versions(__version__),
    )
    if resume is not None:
        check_resumable(resume, assignment)
    clock = None if time_limit is None else SystemClock()
    with solver_of(policy) as worker:
        settings = OfflineSettings(
            clock, worker, limits, show=progress or (lambda _: None), earlier=resume
        )
        return solve_offline(taken, policy, assignment, settings)[1]


def _instance(
    cluster: Snapshot | str | Path,
) -> tuple[Snapshot, InstanceIdentity, tuple[str, ...]]:
    """Return a snapshot, its identity, and the names of the schedulers whose pods were read.

    The scheduler names are empty if the caller built the snapshot.
    """
    if isinstance(cluster, Snapshot):
        return cluster, snapshot_identity(cluster), ()
    return read(cluster), instance_identity(cluster), SCHEDULER_NAMES


def compile_problem(cluster: Snapshot | str | Path, previous: Problem | None = None) -> Problem:
    """Compile the pending tasks of a cluster into the arrays of an optimisation problem.

    Parameters
    ----------
    cluster
        A snapshot, or the path of a file or folder that `read` accepts.
    previous
        The problem of an earlier state of the cluster, or None. An earlier problem makes the
        compilation faster and does not change the result.

    Raises
    ------
    ArgumentError
        `cluster` is neither a snapshot nor a path, or `previous` is not a problem.
    InstanceError
        The cluster cannot be read.

    """
    _check_path("cluster", cluster, f"a snapshot or {_PATH}", (Snapshot,))
    _check_kind("previous", previous, (Problem, type(None)), "a result of compile_problem")
    return compile_snapshot(cluster if isinstance(cluster, Snapshot) else read(cluster), previous)


def explain(plan: Plan, gang: str) -> str:
    """Describe why a gang waits, or on which nodes its tasks start.

    Parameters
    ----------
    gang
        `namespace/name`; a name without a namespace is in `default`.

    Raises
    ------
    KeyError
        The gang neither waits nor starts in the plan.
    ArgumentError
        `plan` was not returned by `solve`, or `gang` is not a name.

    """
    _check_kind("plan", plan, (Plan,), "a result of solve")
    _check_name("gang", gang, "namespace/name, or a name")
    key = gang if "/" in gang else f"{DEFAULT_NAMESPACE}/{gang}"
    if key in plan.pending:
        return str(plan.pending[key])
    places = sorted(
        action.node
        for action in plan.actions
        if isinstance(action, Allocate) and action.gang == key
    )
    if not places:
        raise KeyError(f"{key}: neither waits nor starts in this plan")
    return f"starts on {', '.join(places)}"


# --- over time -----------------------------------------------------------------------------------


@_renaming(given="trace")
def simulate(
    trace: LoadedTrace | str | Path,
    model: str | Path | Policy = "volcano-compatible",
    *,
    seed: int = 0,
    warm_up: str = "0s",
    period: str | None = None,
    until: str | None = None,
) -> SimulationResult:
    """Replay a trace in virtual time, as `optsched simulate` does.

    Parameters
    ----------
    trace
        A result of `trace` or `read_trace`, or a source that `read_trace` accepts.
    model
        The name of a model, the path of a model file, or a policy.
    seed
        Random seed of the solver, if the model uses a solver.
    warm_up
        Initial part of the trace that the metrics exclude, as a duration.
    period
        Time between two sessions, or None for the session period of the model.
    until
        Time after the start of the trace at which the replay stops, or None for the end of the
        trace.

    Returns
    -------
    SimulationResult
        `metrics` holds the metrics of the replay, with times in seconds and fractions from 0 to 1.
        `jobs` holds the arrival, start and end of each gang, in milliseconds after the start of the
        trace.

    Raises
    ------
    PolicyError, DurationError, InstanceError, SyntheticError
        The model, a duration or the trace has errors.
    ArgumentError
        An argument has the wrong type, or is out of range.

    """
    _check_path("trace", trace, f"a trace, {_PATH} or gavel:…", (LoadedTrace,))
    _check_search(None, None, seed, None, model)
    seed, policy = int(seed), _policy(model)
    options = Options(_positive_ms("period", period), _positive_ms("until", until), seed)
    with solver_of(policy) as worker:
        return play(
            trace if isinstance(trace, LoadedTrace) else read_trace(trace),
            policy,
            options,
            warm_up_ms=_not_negative_ms("warm_up", warm_up),
            solver=worker,
            clock=SystemClock(),
        )


def compare(
    traces: Iterable[str | Path | LoadedTrace],
    models: Iterable[str | Path | Policy],
    seeds: Iterable[int] = (0,),
    *,
    workers: int = 0,
) -> Comparison:
    """Replay traces under several models and compare the results, as `optsched compare` does.

    Parameters
    ----------
    traces
        Results of `trace`, or sources that `read_trace` accepts. A synthetic trace is generated
        again for each seed.
    models
        Names of models, paths of model files, or policies; each model is compared with the first.
    workers
        Number of worker processes of a local Dask cluster, or 0 to replay in the calling process.

    Returns
    -------
    Comparison
        The results, with the methods `mean_of_model`, `difference` (paired, with a simultaneous
        confidence interval), `verdict`, `as_json` and `as_csv`.

    Raises
    ------
    InstanceError, SyntheticError, PolicyError, ExecutorError
        A trace or a model cannot be read, or Dask is not installed.
    ArgumentError
        A list of traces, models or seeds is empty or has a duplicate, or an item has the wrong
        type.

    """
    kinds = (LoadedTrace, str, Path)
    given_traces = _listed("traces", traces, kinds, f"a trace, {_PATH} or gavel:…")
    named = _listed("models", models, (str, Path, Policy), f"a name, {_PATH} or a policy")
    for position, each in enumerate(given_traces):
        _check_path(f"traces[{position}]", each, f"a trace, {_PATH} or gavel:…", (LoadedTrace,))
    numbers = _listed("seeds", seeds, (Integral,), "a whole number")
    for position, number in enumerate(numbers):
        _check_integer(f"seeds[{position}]", number, 0, _MOST_SEED)
    numbers = list(map(int, numbers))
    _check_integer("workers", workers, 0)
    names = [m.name if isinstance(m, Policy) else str(m) for m in named]
    sources = [t.trace.name if isinstance(t, LoadedTrace) else str(t) for t in given_traces]
    for what, listed in (("model", names), ("trace", sources), ("seed", numbers)):
        if not listed:
            raise ArgumentError(f"{what}s: there is no {what}: give at least one")
        _check_none_twice(what, listed)
    policies = dict(zip(names, map(_policy, named), strict=True))
    given: dict[tuple[str, int], LoadedTrace] = {}
    for source, each in zip(sources, given_traces, strict=True):
        if isinstance(each, LoadedTrace):
            given |= {(source, seed): each for seed in numbers}
        else:
            given |= read_traces([source], numbers, None, None)
    cells = cells_of(policies, given, Options())
    if not workers:
        return _compared(cells, LocalExecutor(SystemClock()))
    with local_cluster(min(workers, len(cells)), SystemClock()) as place:
        return _compared(cells, place)


def _check_none_twice(what: str, listed: Sequence[object]) -> None:
    twice = [each for each, number in Counter(listed).items() if number > 1]
    if twice:
        raise ArgumentError(f"{what}s: {twice[0]} is given more than once")


def _not_negative_ms(name: str, text: object) -> int:
    found = _duration_ms(name, text)
    if found < 0:
        message = f"is negative: write a duration of zero or more, such as 60s (argument {name})"
        raise DurationError(text, message)
    return found


def _positive_ms(name: str, text: object) -> int | None:
    if text is None:
        return None
    found = _duration_ms(name, text)
    if found <= 0:
        message = f"is too short: write a duration longer than zero, such as 60s (argument {name})"
        raise DurationError(text, message)
    return found


def _duration_ms(name: str, text: object) -> int:
    """Parse a duration to milliseconds; errors name the argument."""
    _check_kind(name, text, (str,), _DURATION)
    try:
        return parse_duration_ms(text)
    except DurationError as e:
        raise DurationError(text, f"{e.message} (argument {name})") from e


def _compared(cells: Sequence[Cell], place: Executor) -> Comparison:
    done = list(place.play(cells))
    results = {each.cell.key: each.result for each in done if each.result is not None}
    failures = {each.cell.name: each.fault for each in done if each.result is None}
    return Comparison.from_results(cells, results, failures)


def _policy(model: str | Path | Policy) -> Policy:
    return model if isinstance(model, Policy) else load_policy(model)
