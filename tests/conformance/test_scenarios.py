"""Each scenario passes, or is a listed exception that fails for a stated reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.policy import PolicyError
from tests.conformance.compare import differences, worse
from tests.conformance.exceptions import read_exceptions
from tests.conformance.play import alone, carried_out, play, solving
from tests.conformance.probes import Desk
from tests.conformance.scenarios import Scenario, scenarios
from tests.support.shared import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from _pytest.mark import ParameterSet

    from optsched.cluster.snapshot import Snapshot
    from optsched.session.session import SessionContext
    from tests.conformance.play import Played

    Verdict = Callable[[Mapping[str, Any], Played, Snapshot], list[str]]

EXCEPTIONS = read_exceptions()


def _cases(mode: str) -> Iterator[ParameterSet]:
    for scenario in scenarios():
        if mode == "optimising" and scenario.kind == "probe":
            continue  # A probe runs no session.
        reason = EXCEPTIONS.get(scenario.id, {}).get(mode)
        marks = [pytest.mark.xfail(reason=reason, raises=AssertionError)] if reason else []
        yield pytest.param(scenario, id=scenario.id, marks=marks)


@pytest.fixture(autouse=True)
def _tell(request: pytest.FixtureRequest) -> None:
    """Record the scenario and the mode for the table at the end of the run."""
    params = getattr(request.node, "callspec", None)
    if params is not None and "scenario" in params.params:
        scenario = params.params["scenario"]
        mode = "optimising" if "optimising" in request.node.name else "pipeline"
        note = {"id": scenario.id, "package": scenario.package, "mode": mode}
        request.node.user_properties.append(("conformance", note))


def test_the_scenarios_are_there() -> None:
    listed = shared("conformance", "volcano", "index.tsv").read_text("utf-8").splitlines()[1:]
    assert sorted(line.split("\t")[0] for line in listed) == [s.id for s in scenarios()]


@pytest.mark.parametrize("scenario", list(_cases("pipeline")))
def test_the_pipeline_does_what_volcano_did(scenario: Scenario) -> None:
    found = _probed(scenario) if scenario.kind == "probe" else _pipelined(scenario)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scenario", list(_cases("optimising")))
def test_the_optimising_session_keeps_all_rules_and_is_no_worse(scenario: Scenario) -> None:
    found = _played(scenario, solving(), {}, lambda e, p, _: worse(e, p))
    assert not found, "\n".join(found)


def _probed(scenario: Scenario) -> list[str]:
    try:
        desk = Desk(scenario)
    except PolicyError as e:
        raise AssertionError(str(e)) from e
    probes = scenario.data.get("probes", [])
    asked = [what for probe in probes for what in desk.wrong(probe)]
    return asked if probes else ["nothing that could be asked"]


def _pipelined(scenario: Scenario) -> list[str]:
    def verdict(expect: Mapping[str, Any], played: Played, snapshot: Snapshot) -> list[str]:
        return differences(expect, played, snapshot, scenario)

    return _played(scenario, alone(), {"solver": "none"}, verdict)


def _played(
    scenario: Scenario, context: SessionContext, more: Mapping[str, Any], verdict: Verdict
) -> list[str]:
    """Return the differences of one session, or of several sessions on one cluster."""
    unmet = _unmet(scenario.preconditions)
    assert not unmet, f"preconditions {unmet}"
    objects = scenario.objects
    try:
        policy = scenario.policy(**more)
    except PolicyError as e:
        raise AssertionError(str(e)) from e
    found: list[str] = []
    for cycle in scenario.data.get("cycles", [{"expect": scenario.expect}]):
        objects += [obj for each in cycle.get("addObjects", {}).values() for obj in each]
        if "actions" in cycle:
            actions = tuple(a.strip() for a in cycle["actions"].split(","))
            policy = replace(policy, actions=actions)
        snapshot = scenario.snapshot(objects)
        played = play(snapshot, policy, context)
        found += verdict(cycle["expect"], played, snapshot)
        objects = carried_out(objects, played)
    return found


_WHOLE_CLUSTER = "<cluster-top-hypernode>"


def _unmet(preconditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preconditions that no test sets up.

    optsched limits volumes by the limits of their nodes, for every provisioner. Measured load and
    shards are in the snapshot. A nomination to the whole cluster has no effect.
    """
    met = ("ignoredCSIProvisioners", "nodeUsage", "sharding")
    unmet = {k: v for k, v in preconditions.items() if k not in met}
    if set(unmet.get("nominatedHyperNode", {}).values()) == {_WHOLE_CLUSTER}:
        del unmet["nominatedHyperNode"]
    return unmet
