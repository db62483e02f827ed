"""Run scenarios through the session of the product."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.cluster.decisions import Allocate, Enqueue, Evict, Nominate
from optsched.plugins.verification.verify import verify_actions
from optsched.session.session import SessionContext, run_session
from optsched.session.status import gang_status
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy import Policy

GONE = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Played:
    """The outcome of a session for a scenario, with names of tasks, nodes and gangs.

    `broken` contains every rule violation of the plan and of the plans rejected before it.
    `statuses` contains the number of tasks by gang and status, with Volcano's names.
    """

    binds: Mapping[str, str]
    evicted: frozenset[str]
    pipelined: Mapping[str, str]
    phases: Mapping[str, str]
    statuses: Mapping[str, Counter[str]]
    broken: tuple[str, ...]


def alone() -> SessionContext:
    """Return the context of a session without a solver."""
    return SessionContext()


def solving() -> SessionContext:
    """Return the context of a session with a solver that reads no clock."""
    return SessionContext(solver=InProcess(), limits=Limits(budget_ms=None, num_workers=1))


def play(snapshot: Snapshot, policy: Policy, context: SessionContext) -> Played:
    """Run one session and return its outcome."""
    report = run_session(snapshot, policy, context)
    plan = report.plan
    again = verify_actions(report.problem.snapshot, plan.actions, policy.rules)
    return Played(
        binds=plan.binds,
        evicted=frozenset(a.task for a in plan.actions if isinstance(a, Evict)),
        pipelined={a.task: a.node for a in plan.actions if isinstance(a, Nominate)},
        phases=_phases(snapshot, plan),
        statuses=_statuses(snapshot, plan),
        broken=tuple(map(str, (*report.trace.violations, *again))),
    )


def _phases(snapshot: Snapshot, plan: Plan) -> dict[str, str]:
    allocated = Counter(a.gang for a in plan.actions if isinstance(a, Allocate))
    enqueued = {a.gang for a in plan.actions if isinstance(a, Enqueue)}
    return {
        g.key: gang_status(g, None, allocated[g.key], g.key in enqueued).phase.value
        for g in snapshot.gangs
    }


def _statuses(snapshot: Snapshot, plan: Plan) -> dict[str, Counter[str]]:
    new = {a.task: "Binding" for a in plan.actions if isinstance(a, Allocate)}
    new |= {a.task: "Pipelined" for a in plan.actions if isinstance(a, Nominate)}
    new |= {a.task: "Releasing" for a in plan.actions if isinstance(a, Evict)}
    return {g.key: Counter(new.get(t.key, t.status.value) for t in g.tasks) for g in snapshot.gangs}


def carried_out(objects: list[dict[str, Any]], played: Played) -> list[dict[str, Any]]:
    """Return the objects after a session's actions, as input of the next session."""
    return [_after(obj, played) for obj in objects]


def _after(obj: dict[str, Any], played: Played) -> dict[str, Any]:
    meta = obj["metadata"]
    key = f"{meta.get('namespace', 'default')}/{meta['name']}"
    if obj["kind"] == "PodGroup" and key in played.phases:
        return {**obj, "status": {**obj.get("status", {}), "phase": played.phases[key]}}
    if obj["kind"] != "Pod":
        return obj
    if key in played.binds:
        return {**obj, "spec": {**obj["spec"], "nodeName": played.binds[key]}}
    if key in played.evicted:
        return {**obj, "metadata": {**meta, "deletionTimestamp": GONE}}
    return obj
