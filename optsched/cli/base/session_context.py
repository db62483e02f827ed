"""Plugins, policy, session context and garbage collection for commands that run sessions.

A session creates many small objects that live until it ends. With Python's default thresholds, the
garbage collector traverses a session's objects again and again. In a large session, garbage
collection then takes a fifth of the session's running time.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

import click

from optsched.cli.base.command_errors import BAD_INPUT, name_inputs
from optsched.cli.base.console import print_text
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES
from optsched.kube.runtime.timing import SystemClock
from optsched.policy.catalogue import ACTION_ENTRY_POINTS, ENTRY_POINTS, PluginSource
from optsched.policy.diagnostic import PolicyError
from optsched.policy.load import load_policy
from optsched.policy.policy import with_solver
from optsched.session.session import SessionContext
from optsched.session.solve_settings import solver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console

    from optsched.policy.catalogue import Files
    from optsched.policy.policy import Policy
    from optsched.solver.cpsat.level_model import Limits

THRESHOLDS = (200_000, 20, 100)
SERVING = (50_000, 10, 2)
"""Garbage collection thresholds of a service, low enough to free garbage of earlier sessions.

With the larger `THRESHOLDS`, a full garbage collection would never run.
"""

scheduler_names_option: Final = click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=SCHEDULER_NAMES,
    show_default=True,
    help="Schedule pods with this schedulerName; may be repeated.",
)


def collect_less() -> None:
    """Set the garbage collection thresholds for a process that runs a single session."""
    gc.set_threshold(*THRESHOLDS)


def collect_while_serving() -> None:
    """Set the garbage collection thresholds for a service that runs many sessions."""
    gc.set_threshold(*SERVING)


def freeze_objects() -> None:
    """Exclude all existing objects from garbage collection, and call `collect_less`."""
    gc.collect()
    gc.freeze()
    collect_less()


def plugin_source_of(folder: Path | None) -> PluginSource:
    """Return the source of custom plugins: the files in `folder`, and installed entry points."""
    groups = (ENTRY_POINTS, ACTION_ENTRY_POINTS)
    plugins, actions = (
        tuple(sorted(entry_points(group=g), key=lambda e: (e.name, e.value))) for g in groups
    )
    return PluginSource(folder, read_folder, plugins, actions)


def read_folder(folder: Path) -> Files:
    """Return (path, text) for each Python file in a folder, sorted by path.

    Files whose names begin with `_` or `.` are skipped. Raises OSError and UnicodeError.
    """
    return tuple((str(path), path.read_text("utf-8-sig")) for path in _plugin_files(folder))


def _plugin_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix == ".py" and p.name[0] not in "_.")


def list_plugin_files(folder: Path | None) -> list[Path]:
    """Return the plugin files in a folder, or an empty list if the folder cannot be read."""
    try:
        return [] if folder is None else _plugin_files(folder)
    except OSError:
        return []


def policy_of(console: Console, model: str, solver: str | None, plugins_dir: Path | None) -> Policy:
    """Load the policy of a model name or model file; exit with 2 if the policy is invalid."""
    return policy_from(
        console,
        solver,
        plugins_dir,
        lambda plugins: load_policy(model, lambda p: p.read_text("utf-8"), plugins),
    )


def policy_from(
    console: Console,
    solver: str | None,
    plugins_dir: Path | None,
    load: Callable[[PluginSource], Policy],
) -> Policy:
    """Return the policy that the function `load` reads; exit with 2 if the policy is invalid."""
    try:
        policy = load(plugin_source_of(plugins_dir))
    except PolicyError as e:
        print_text(console, str(e), "red")
        sys.exit(BAD_INPUT)
    for warning in policy.warnings:
        print_text(console, str(warning), "yellow")
    return with_solver(replace(policy, name=name_inputs(policy.name)), solver)


@contextmanager
def session_context(
    policy: Policy, limits: Limits, *, deterministic: bool
) -> Iterator[SessionContext]:
    """Yield a session context, with a solver process and its limits if the policy uses a solver."""
    clock = None if deterministic else SystemClock()
    with solver_of(policy) as solver:
        yield SessionContext(clock, solver, limits=limits if solver else None)
