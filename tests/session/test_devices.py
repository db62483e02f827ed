"""No device is allocated twice in plans of sessions, replays and comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.snapshots.instance_files import read_instance
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.process import InProcess
from tests.plugins.test_device_claims import random_claims
from tests.plugins.test_deviceshare import random_cards
from tests.support.devices import random_parts, wrong_with_devices
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy

EXAMPLES = Path(__file__).parents[2] / "instances" / "examples"
MODELS = {
    "gpus": "gpus-model.yaml",
    "mig": "gpus-model.yaml",
    "npus": "npus.conf",
    "numa": "numa-model.yaml",
}


def policy(name: str) -> Policy:
    model = MODELS.get(name)
    return load_policy(str(EXAMPLES / model) if model else "volcano-default", Path.read_text)


@pytest.mark.parametrize("name", ["devices", "gpus", "mig", "npus", "packing", "numa"])
@pytest.mark.parametrize("solver", [None, InProcess()], ids=["greedy", "solver"])
def test_examples(name: str, solver: InProcess | None) -> None:
    snapshot = read_instance(EXAMPLES / f"{name}.yaml", DecodeOptions()).snapshot
    plan = run_session(snapshot, policy(name), SessionContext(solver=solver)).plan
    assert plan.binds
    assert wrong_with_devices(snapshot, plan.actions) == []


SHARING = policy("gpus")
CLAIMING = policy("devices")


@pytest.mark.parametrize("seed", range(num_examples(30)))
@pytest.mark.parametrize(
    ("made", "by"),
    [(random_cards, SHARING), (random_claims, CLAIMING), (random_parts, CLAIMING)],
    ids=["cards", "claims", "parts"],
)
def test_random_clusters(made: Callable[..., Snapshot], by: Policy, seed: int) -> None:
    snapshot = made(np.random.default_rng(seed))
    solver = InProcess() if seed % 3 == 0 else None
    report = run_session(snapshot, by, SessionContext(solver=solver))
    assert report.trace.violations == ()
    assert wrong_with_devices(snapshot, report.plan.actions) == []


def test_the_checker_sees_what_is_wrong() -> None:
    """The mistakes are doubly allocated GPUs, and claims without devices."""
    snapshot = random_cards(np.random.default_rng(3))
    told = 0
    for seed in range(12):
        snapshot = random_cards(np.random.default_rng(seed))
        for action in run_session(snapshot, SHARING, SessionContext()).plan.actions:
            if isinstance(action, Allocate) and action.shared_gpus:
                more = tuple(replace(c, memory=10**6) for c in action.shared_gpus)
                told += 1
                assert wrong_with_devices(snapshot, [replace(action, shared_gpus=more)])
                assert wrong_with_devices(snapshot, [replace(action, shared_gpus=())])
    assert told > 3
