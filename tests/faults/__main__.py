"""Run schedules of faults and check invariants: `python -m tests.faults --seed N --count M`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from optsched.local.assets import require, shipped
from optsched.local.components import Options
from optsched.local.plane import ControlPlane
from tests.faults.run import Run
from tests.faults.schedule import FaultKind, Schedule, draw_schedule
from tests.support.api import Api
from tests.support.live import Site


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long gangs come")
    parser.add_argument("--rate", type=float, default=0.06, help="part of requests treated badly")
    parser.add_argument("--calm", action="store_true", help="without faults, to count requests")
    parser.add_argument("--show", action="store_true", help="print the schedule and end")
    return parser.parse_args()


def main() -> int:
    """Run all seeds, and return 1 if an invariant is violated."""
    options = _parsed()
    kinds = () if options.calm else tuple(FaultKind)
    rate = 0.0 if options.calm else options.rate
    num_bad = 0
    for seed in range(options.seed, options.seed + options.count):
        schedule = draw_schedule(seed, options.seconds, kinds=kinds)
        if options.show:
            print(*schedule.faults, *schedule.stops, *schedule.submissions, sep="\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            num_bad += _played(schedule, Path(folder), rate)
    return 1 if num_bad else 0


def _played(schedule: Schedule, folder: Path, rate: float) -> bool:
    """Run one seed on a new control plane, and return whether an invariant is violated."""
    begun = time.monotonic()
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(folder / "plane", require(print), options) as plane:
        api = Api(plane.kubeconfig)
        with Site(f"faults-{schedule.seed}", api, plane.kubeconfig, folder) as site:
            result = Run(plane, site, schedule, folder, rate).play()
        api.close()
    print(
        f"seed {schedule.seed}: {len(schedule.faults)} faults, "
        f"{len(schedule.stops) - len(result.missed)} stops at writes, {result.num_binds} binds, "
        f"{result.num_evictions} evictions, {result.per_bind('scheduler'):.2f} and "
        f"{result.per_bind('controllers'):.2f} writes of scheduler and controllers for each bind, "
        f"statuses after {result.status_s:.1f} s, "
        f"{result.num_denials} jobs denied and {result.num_unreviewed} not reviewed, "
        f"{time.monotonic() - begun:.0f} s; {len(result.problems)} problems",
        flush=True,
    )
    for kind, counts in result.counts.items():
        for key, number in sorted(counts.items(), key=lambda entry: -entry[1])[:12]:
            print(f"  {kind}: {number} {key}")
    for problem in result.problems:
        print(f"  {problem}; make e2e-faults SEED={schedule.seed}", flush=True)
    return bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())
