"""Check that no accepted plan of the independent joint model exceeds a bound of a certificate."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate, Sense
from optsched.plugins.objectives.gang_levels import ADMISSION
from optsched.policy.load import is_shipped
from optsched.policy.policy import SolverKind
from tests.oracle.checks import OPEN, Finding
from tests.oracle.manifests import gang_of
from tests.oracle.sessions import (
    MODELS,
    Worth,
    described,
    first_loss,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.cluster.decisions import Action, Certificate
    from optsched.cluster.snapshot import Snapshot
    from tests.oracle.sessions import Decided, Difference

_TRIES = 3


class Worker:
    """The process of the joint model."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.oracle.joint"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the joint model's plan for a request, or None without a plan."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        self.cpu_s = float(reply["cpu_s"])
        if "error" in reply:
            raise RuntimeError(f"joint model: {reply['error']}")
        return reply["plan"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@cache
def worker() -> Worker:
    """Return the one joint model process, which ends together with this process."""
    started = Worker()
    atexit.register(started.close)
    return started


@cache
def model_of(model: str) -> Any:
    """Return the parsed file of a model."""
    if is_shipped(model):
        text = files("optsched.models").joinpath(f"{model}.yaml").read_text("utf-8")
    else:
        text = (MODELS / f"{model}.yaml").read_text("utf-8")
    return yaml.load(text, Loader=yaml.SafeLoader)


def check_proof(decided: Decided) -> Iterator[Finding]:
    """No plan of the joint model that the verifier accepts exceeds a bound."""
    snapshot, policy, model = decided.snapshot, decided.policy, decided.model
    plan, mine = decided.plan, decided.worth
    request = {"document": decided.cluster.document(), "policy": model_of(model), "barred": []}
    closed = _closed_gangs(decided)
    for evict in (True, False):
        barred = list(closed)
        for _ in range(_TRIES):
            found = worker().ask({**request, "evict": evict, "barred": barred})
            if found is None:
                break
            actions = actions_of(snapshot, found)
            theirs = Worth.of(snapshot, policy, actions)
            if theirs.violations:
                barred.append(_parts(found))
                continue
            loss = first_loss(mine, theirs)
            if loss is not None:
                bound = _bound(plan.certificate, loss.level)
                kind = false_claim(plan.certificate, loss)
                if kind:
                    told = "\n".join(f"  {action}" for action in actions)
                    text = f"a better plan is accepted: {loss}, bound {bound}\n"
                    yield Finding(
                        f"{kind} {loss.level.partition(',')[0]}",
                        model,
                        f"{text}{described(plan)}\nbetter\n{told}\n  {theirs.levels}",
                    )
                    return
            break


def check_value(decided: Decided) -> Iterator[Finding]:
    """The admission value of a plan agrees with the joint model and stays
    within its upper bound.
    """
    snapshot, policy, model = decided.snapshot, decided.policy, decided.model
    if "admission" not in policy.levels:
        return
    plan = decided.plan
    started = {a.gang for a in plan.actions if isinstance(a, Allocate | Nominate)}
    request = {"document": decided.cluster.document(), "policy": model_of(model)}
    told = worker().ask({**request, "started": sorted(started)})
    judged = Worth.with_loans(snapshot, policy, plan.actions).levels
    value = sum(v for name, _, v in judged if name.startswith(ADMISSION))
    # The certificate counts loans on a separate level.
    claimed = sum(r.value for r in plan.certificate.levels if r.name.startswith(ADMISSION))
    if value != told["value"] or claimed > min(value, told["most"]):
        numbers = f"{claimed} claimed, {value} judged, {told['value']} by the joint model"
        text = f"{numbers}, at most {told['most']} possible\n{described(plan)}"
        yield Finding("false value admission", model, text)


def _closed_gangs(decided: Decided) -> list[list[str]]:
    """Return the gangs of closed queues, because the joint model does not know closed queues."""
    known = {task.gang for task in decided.report.problem.tasks}
    return [[g.key.partition("/")[2]] for g in decided.snapshot.gangs if g.key not in known]


def check_starvation(decided: Decided) -> Iterator[Finding]:
    """If a session has no actions, no gang could start without evictions.

    Running gangs may wait for more pods, because a level may prefer compact gangs. The pipeline
    places one pod after another, so it may miss placements. Its missed placements are counted as
    open.
    """
    cluster, snapshot, model = decided.cluster, decided.snapshot, decided.model
    running = Counter(gang_of(p) for p in cluster.of_kind("Pod") if "nodeName" in p["spec"])
    lacking = {
        f"{g['metadata']['namespace']}/{g['metadata']['name']}"
        for g in cluster.of_kind("PodGroup")
        if running[g["metadata"]["name"]] < g["spec"]["minMember"]
    }
    request = {"document": cluster.document(), "policy": model_of(model), "evict": False}
    barred = _closed_gangs(decided)
    for _ in range(_TRIES):
        found = worker().ask({**request, "barred": barred})
        bind = [] if found is None else [each for each in found["bind"] if each[2] in lacking]
        if not bind:
            return
        actions = actions_of(snapshot, {"bind": bind, "nominate": [], "evict": []})
        if not Worth.of(snapshot, decided.policy, actions).violations:
            gangs = ", ".join(sorted({gang for _, _, gang in bind}))
            kind = (
                "chain starves"
                if decided.policy.solver is SolverKind.CPSAT
                else f"{OPEN}, chain starves"
            )
            yield Finding(kind, model, f"could start at rest: {gangs}")
            return
        barred.append(_parts(found))


def _parts(found: Mapping[str, Any]) -> list[str]:
    """Return the victims and gangs of a plan, to forbid this plan."""
    gangs = {g.partition("/")[2] for _, _, g in (*found["bind"], *found["nominate"])}
    return [*(task for task, _, _ in found["evict"]), *sorted(gangs)]


def actions_of(snapshot: Snapshot, found: Mapping[str, Any]) -> list[Action]:
    """Return the plan of the joint model as actions."""
    node_of = {t.key: t.node for g in snapshot.gangs for t in g.tasks}
    return [
        *(Evict(task, node_of[task], action, gang) for task, gang, action in found["evict"]),
        *(Allocate(task, node, gang) for task, node, gang in found["bind"]),
        *(Nominate(task, node, gang) for task, node, gang in found["nominate"]),
    ]


def _bound(certificate: Certificate, level: str) -> int | None:
    return next((r.bound for r in certificate.levels if r.name == level), None)


def false_claim(certificate: Certificate, loss: Difference) -> str:
    """Return the false statement of the certificate, or an empty text.

    The text is empty if the certificate leaves a better plan open.
    """
    level, better = loss.level, loss.better
    result = next((r for r in certificate.levels if r.name == level), None)
    if result is None:
        return "false proof without level" if certificate.is_proved else ""
    if result.status is LevelStatus.OPTIMAL:
        return "false proof" if certificate.is_proved else "false optimum"
    bound = _bound(certificate, level)
    if bound is not None and (better > bound if result.sense is Sense.MAX else better < bound):
        return "false bound"
    return ""
