"""Measure the time of Crater's five job types from `kubectl apply` until all their pods run.

Run `make bench-crater`. The cluster has four KWOK nodes with GPUs, ten without, and Crater's
configuration. Scheduler, controllers and webhook run together. One command applies queues and jobs,
so the time includes the run time of kubectl. The manifests are Crater's own, unmodified.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.local.assets import require, shipped
from optsched.local.components import Options
from optsched.local.plane import ControlPlane
from tests.support.jobs import documents
from tests.support.shared import shared
from tests.support.together import Together, jobs_of
from tests.support.webhooks import make_namespace

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ("jupyter", "webide", "custom", "tensorflow", "pytorch")
NAMESPACE = "crater-workspace"
MOST_S = 8.0


def manifest(name: str) -> Path:
    return shared("manifests", "crater", f"{name}.yaml")


def scheduler_flags(folder: Path) -> tuple[str, ...]:
    """Return the scheduler flags for Crater's configuration."""
    [values] = documents(manifest("values"))
    config = folder / "crater.conf"
    config.write_text(values["custom"]["scheduler_config_override"])
    return "--config", str(config)


def once(together: Together) -> float:
    """Run one round, delete its objects, and return the seconds until all pods ran."""
    paths = [manifest(name) for name in SHAPES]
    begun = time.monotonic()
    together.apply(manifest("queues"), *paths)
    for body in jobs_of(*paths):
        together.await_whole(body)
    seconds = time.monotonic() - begun
    together.clear()
    return seconds


def run(together: Together, rounds: int, say: Callable[[str], None]) -> bool:
    taken = [once(together) for _ in range(rounds)]
    say(f"{len(SHAPES)} kinds of jobs run after {', '.join(f'{each:.1f}' for each in taken)} s")
    say(f"at most {max(taken):.1f} s (≤ {MOST_S:.0f} s)")
    return max(taken) <= MOST_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    say = lambda message: print(message, flush=True)  # noqa: E731
    options = Options(definitions=shipped("crds"))
    with (
        tempfile.TemporaryDirectory(prefix="optsched-") as directory,
        ControlPlane.start(Path(directory) / "plane", require(say), options) as plane,
    ):
        folder = Path(directory)
        with Together(plane, folder, *scheduler_flags(folder)) as together:
            make_namespace(together.api, NAMESPACE)
            reached = run(together, given.rounds, say)
    say("every target reached" if reached else "a target was MISSED")


if __name__ == "__main__":
    main()
