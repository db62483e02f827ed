"""A batch scheduler for Kubernetes that decides each session as one optimisation problem.

Every name in `optsched.library` can be imported from `optsched`, which loads it on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optsched.library import (
        ArgumentError,
        Comparison,
        DurationError,
        ExecutorError,
        Gang,
        InstanceError,
        JobTimes,
        LoadedTrace,
        Node,
        Plan,
        Policy,
        PolicyError,
        Problem,
        Progress,
        Queue,
        ResumeError,
        SimulationResult,
        Snapshot,
        SolveResult,
        SyntheticError,
        Trace,
        arrival,
        compare,
        compile_problem,
        explain,
        gang,
        load_policy,
        node,
        queue,
        read,
        read_trace,
        simulate,
        snapshot,
        solve,
        solve_result,
        trace,
    )

__version__ = "0.1.0"

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
    "__version__",
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


def __getattr__(name: str) -> Any:  # noqa: ANN401  the type depends on the name
    # A command that needs no solver must not spend time loading a solver.
    library = import_module("optsched.library") if not name.startswith("_") else None
    if library is None or name not in (*library.__all__, *library.RENAMED):
        raise AttributeError(f"module 'optsched' has no attribute {name!r}")
    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
