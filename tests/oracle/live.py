"""Check live sessions with evictions on mixed clusters: `python -m tests.oracle.live --seed N`.

The clusters have up to 200 nodes and two levels of queues. A session has the settings of a live
scheduler: a clock, two workers and a budget of 100 or 400 ms. The pipeline and a session with ten
times the budget decide each cluster too. The verifier rejects no plan. No plan of the pipeline that
keeps every rule is better, and no plan exceeds a bound of another plan. Plans depend on time, so
several runs may be needed to reproduce a finding. A plan that becomes worse with ten times the
budget is counted, but is not a finding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from optsched.kube.runtime.timing import SystemClock
from optsched.session.session import NOTHING, SessionContext, run_session
from optsched.session.snapshot_equivalence import period_for
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import WorkerProcess
from tests.oracle.checks import SCORES
from tests.oracle.sessions import (
    Worth,
    first_loss,
    forgoes_admission,
    policy_of,
    without_solver,
)
from tests.support.synthetic_clusters import MixedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.decisions import Certificate
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.session.session import Report
    from optsched.solver.cpsat.process import Solver

MODELS = ("volcano-default", "volcano-compatible", "capacity-hierarchical")
BUDGETS_MS = (100, 400)
MORE_TIME, PERIOD_S = 10, 1.0
OPEN = "open, more time is worse"


def draw_mixed(seed: int, number: int) -> tuple[MixedCluster, int]:
    """Return a cluster by seed and number, and the budget of its sessions in milliseconds."""
    rng = np.random.default_rng((seed, number))
    num_nodes = round(6 * (200 / 6) ** rng.random())
    cluster = MixedCluster(
        num_nodes=num_nodes,
        num_pods=int(np.clip(num_nodes * rng.uniform(2, 6), 12, 900)),
        num_shapes=int(rng.integers(8, 80)),
        num_departments=int(rng.integers(2, 5)),
        num_teams=int(rng.integers(1, 4)),
        fill=float(rng.uniform(0.7, 1.0)),
        seed=seed * 1_000_003 + number,
    )
    return cluster, int(rng.choice(BUDGETS_MS))


def check_live(
    snapshot: Snapshot, policy: Policy, solver: Solver, budget_ms: int
) -> Iterator[tuple[str, str]]:
    """Yield the kind and the description of each finding in live sessions on a snapshot."""
    reports = {
        name: _decide_live(snapshot, policy, solver, factor * budget_ms)
        for name, factor in (("live", 1), ("long", MORE_TIME))
    }
    worths = {}
    for name, report in reports.items():
        for violation in report.trace.violations:
            yield "refused", f"{name}: {violation}"
        if report.plan.certificate.engine == NOTHING:
            yield "no plan", name
        worths[name] = Worth.as_judged(snapshot, policy, report.plan.actions)
        for broken in worths[name].violations:
            yield "accepted plan breaks a rule", f"{name}: {broken}"
    pipeline = run_session(snapshot, without_solver(policy), SessionContext()).plan
    greedy = Worth.as_judged(snapshot, policy, pipeline.actions)
    rivals = {**worths} if greedy.violations else {**worths, "pipeline": greedy}
    for name, report in reports.items():
        for rival, worth in rivals.items():
            beyond = beyond_bound(report.plan.certificate, worths[name], worth)
            if beyond:
                yield "beyond a bound", f"{rival} of {name}: {beyond}"
        loss = None if greedy.violations else first_loss(worths[name], greedy)
        is_intended = forgoes_admission(report.plan)
        if loss is not None and loss.level != SCORES and not is_intended:
            yield "worse than the pipeline", f"{name}: {loss}"
    loss = first_loss(worths["long"], worths["live"])
    if loss is not None and loss.level != SCORES:
        yield OPEN, str(loss)


def _decide_live(snapshot: Snapshot, policy: Policy, solver: Solver, budget_ms: int) -> Report:
    limits = Limits(budget_ms=budget_ms)
    period_ms = period_for(PERIOD_S, limits)
    around = SessionContext(SystemClock(), solver, limits=limits, period_ms=period_ms)
    return run_session(snapshot, policy, around)


def beyond_bound(certificate: Certificate, mine: Worth, other: Worth) -> str:
    """Return the difference by which a better plan exceeds the bound of its first better level.

    Return an empty text if the plan stays within the bound.
    """
    found = first_loss(mine, other)
    if found is None or found.level == SCORES:
        return ""
    result = next((r for r in certificate.levels if r.name == found.level), None)
    if result is None:
        return f"{found}, a level that is missing" if certificate.is_proved else ""
    if result.bound is None:
        return ""
    is_beyond = found.better > result.bound if found.is_max else found.better < result.bound
    return f"{found}, bound {result.bound}" if is_beyond else ""


def main() -> int:
    """Run the checks, and return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.live", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="how many clusters")
    parser.add_argument("--only", type=int, help="the number of a single one")
    parser.add_argument("--seconds", type=float, help="draw no clusters after this time")
    options = parser.parse_args()
    numbers = range(options.count) if options.only is None else [options.only]
    worker, begun = WorkerProcess(), time.monotonic()
    worker.wait_until_ready()
    seen: Counter[str] = Counter()
    sessions = 0
    try:
        for number in numbers:
            if options.seconds is not None and time.monotonic() - begun > options.seconds:
                break
            cluster, budget_ms = draw_mixed(options.seed, number)
            for model in MODELS:
                sessions += 2
                found = check_live(cluster.snapshot(), policy_of(model), worker, budget_ms)
                for kind, text in found:
                    seen[kind] += 1
                    print(f"{kind} ({number}, {model}, {budget_ms} ms): {text}", flush=True)
    finally:
        worker.close()
    print(f"seed {options.seed}: {sessions} sessions in {time.monotonic() - begun:.0f} s")
    for kind, times in sorted(seen.items()):
        print(f"{'seen' if kind == OPEN else 'found'} {times:4} × {kind}")
    return 1 if seen.keys() - {OPEN} else 0


if __name__ == "__main__":
    sys.exit(main())
