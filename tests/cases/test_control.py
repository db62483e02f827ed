"""Shared cases for controllers and admission webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

import optsched
from optsched.api.job import parse_job
from optsched.cluster.decisions import Allocate
from optsched.controllers.job.podgroups import desired_group
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from tests.admission.kit import ask, world
from tests.support.shared import found, shared

if TYPE_CHECKING:
    from pathlib import Path

COVERED = {"hq.yaml", "noenq.yaml", "quota.yaml"}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
}


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(shared("cases", "control", name).read_text("utf-8")))


def test_no_case_is_left_out() -> None:
    assert {path.name for path in found("cases/control/*")} <= COVERED


@pytest.mark.parametrize(("weights", "is_allowed"), [("1/2", True), ("1/2/3", False)])
def test_a_hierarchy_has_a_weight_for_each_part_of_its_path(weights: str, is_allowed: bool) -> None:
    (queue,) = objects("hq.yaml")
    assert queue["metadata"]["annotations"]["volcano.sh/hierarchy-weights"] == "1/2"
    queue["metadata"]["annotations"]["volcano.sh/hierarchy-weights"] = weights
    problems = ask("/queues/validate", queue, world()).problems
    assert (problems == ()) is is_allowed, problems


def test_a_job_asks_its_quotas_for_all_that_they_count() -> None:
    """Minimum resources count pods, requests and limits.

    With smaller minimum resources, half of a gang was created and waited for the other half.
    """
    jobs = [o for o in objects("quota.yaml") if o["kind"] == "Job"]
    quotas = [o["spec"]["hard"] for o in objects("quota.yaml") if o["kind"] == "ResourceQuota"]
    for manifest, hard in zip(jobs, quotas, strict=True):
        job, errors = parse_job(manifest)
        assert job is not None
        assert not errors
        needed = desired_group(job, manifest, lambda name: None)["spec"]["minResources"]
        assert {name: needed[name] for name in hard} == dict.fromkeys(hard, "3")


@pytest.mark.parametrize("has_enqueue", [True, False])
def test_gangs_start_without_the_action_enqueue(tmp_path: Path, has_enqueue: bool) -> None:
    text = shared("cases", "decisions", "ci.conf").read_text("utf-8")
    policy = load_policy("ci.conf", lambda _: text if has_enqueue else without_enqueue(text))
    path = tmp_path / "noenq.yaml"
    path.write_text(yaml.safe_dump_all([NODE, *objects("noenq.yaml")]), "utf-8")
    plan = run_session(optsched.read(path), policy, SessionContext()).plan
    assert len([action for action in plan.actions if isinstance(action, Allocate)]) == 3


def without_enqueue(text: str) -> str:
    changed = text.replace("enqueue, ", "")
    assert changed != text
    return changed
