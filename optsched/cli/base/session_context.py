"""Policy and session context of commands that run sessions."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cli.base.console import print_text
from optsched.cli.base.custom_plugins import shelf_of
from optsched.cli.base.exit_codes import BAD_INPUT
from optsched.cli.base.plain_errors import name_inputs
from optsched.kube.runtime.timing import SystemClock
from optsched.policy.diagnostic import PolicyError
from optsched.policy.load import load_policy
from optsched.policy.policy import with_solver
from optsched.session.session import SessionContext
from optsched.session.solve_settings import solver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console

    from optsched.policy.catalogue import Shelf
    from optsched.policy.policy import Policy
    from optsched.solver.cpsat.level_model import Limits


def policy_of(console: Console, model: str, solver: str | None, plugins_dir: Path | None) -> Policy:
    """Return the policy of a model's name or file; exit with 2 if it is invalid."""
    return policy_from(
        console,
        solver,
        plugins_dir,
        lambda shelf: load_policy(model, lambda p: p.read_text("utf-8"), shelf),
    )


def policy_from(
    console: Console, solver: str | None, plugins_dir: Path | None, load: Callable[[Shelf], Policy]
) -> Policy:
    """Return the policy that `load` returns; exit with 2 if it is invalid."""
    try:
        policy = load(shelf_of(plugins_dir))
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
    """Yield clock, solver process (if the policy has a solver) and limits for sessions."""
    clock = None if deterministic else SystemClock()
    with solver_of(policy) as solver:
        yield SessionContext(clock, solver, limits=limits if solver else None)
