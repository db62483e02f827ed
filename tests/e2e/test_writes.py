"""The writes of the project's components, according to the API server's audit log."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from optsched.local.plane import ControlPlane
from tests.support.api import Api, until
from tests.support.audit import Audit, audited, read_audit
from tests.support.live import Site
from tests.support.livejobs import LiveJob
from tests.support.vcjobs import job, task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.assets import Assets

    Raw = dict[str, Any]

pytestmark = pytest.mark.e2e

NUM_JOBS, NUM_PODS = 8, 10
MOST_REQUESTS = {"scheduler": 2.6, "controllers": 2.0}
"""For each bound pod; on a calm machine 2.4 and 1.7."""
USUALLY_LATE_S, MOST_LATE_S = 5.0, 15.0
"""On a calm machine at most 2 s; a busy one may let a process wait for seconds."""
RULES = (
    {"level": "None", "verbs": ["get", "list", "watch"]},
    {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
    {"level": "RequestResponse"},
)


def is_ours(entry: Raw) -> bool:
    return entry["user"]["username"] in MOST_REQUESTS


def is_told_bind(entry: Raw) -> bool:
    """Return whether an audit entry creates an event about a bind."""
    return what(entry) == "create events" and entry["requestObject"]["reason"] == "Scheduled"


def what(entry: Raw) -> str:
    ref = entry["objectRef"]
    part = f"/{ref['subresource']}" if "subresource" in ref else ""
    return f"{entry['verb']} {ref['resource']}{part}"


def without_effect(entries: list[Raw]) -> list[str]:
    """Return the writes that left an object unchanged, because its version occurred before."""
    seen: set[tuple[str, str]] = set()
    found = []
    for entry in entries:
        meta = entry.get("responseObject", {}).get("metadata", {})
        if "uid" not in meta or entry["verb"] == "delete":
            continue
        state = (meta["uid"], meta["resourceVersion"])
        if state in seen and is_ours(entry):
            found.append(f"{what(entry)} {meta['name']}: {entry['requestObject']}")
        seen.add(state)
    return found


@pytest.fixture(scope="module")
def plane_and_log(
    assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, Audit]]:
    """Yield a separate control plane and the audit log of its writes."""
    folder = tmp_path_factory.mktemp("audited")
    options, audit = audited(folder, RULES)
    with ControlPlane.start(folder / "plane", assets, options) as plane:
        yield plane, audit


@pytest.fixture
def site(plane_and_log: tuple[ControlPlane, Audit], tmp_path: Path) -> Iterator[Site]:
    plane, _ = plane_and_log
    api = Api(plane.kubeconfig)
    with Site("writes", api, plane.kubeconfig, tmp_path) as site:
        yield site
    api.close()


def test_few_writes_a_pod_none_in_vain_and_events_in_time(
    site: Site, plane_and_log: tuple[ControlPlane, Audit]
) -> None:
    """The test counts all writes from submission to end: pods, binds, statuses and events."""
    plane, audit = plane_and_log
    users = {name: plane.kubeconfig_for(name, ["system:masters"]) for name in MOST_REQUESTS}
    site.nodes(4, cpus=32)
    site.scheduler("--schedule-period", "1s", kubeconfig=users["scheduler"])
    site.controllers(kubeconfig=users["controllers"])
    jobs = [LiveJob(site, job(task("w", NUM_PODS), name=f"j{i}")) for i in range(NUM_JOBS)]
    for each in jobs:
        each.await_phase("Running")
        each.await_count(running=NUM_PODS)
    for each in jobs:
        each.succeed(*(f"w-{i}" for i in range(NUM_PODS)))
    for each in jobs:
        each.await_phase("Completed")
    num_pods = NUM_JOBS * NUM_PODS
    entries: list[Raw] = []

    def are_all_written() -> bool:
        entries.extend(audit.read())
        return sum(is_told_bind(e) for e in entries if is_ours(e)) >= num_pods

    until(are_all_written, "binds are told")
    measured = read_audit(entries)
    print(measured.requests)
    made = measured.requests["controllers"]["create pods"]
    assert made == measured.requests["scheduler"]["create pods/binding"] == num_pods
    for process, most in MOST_REQUESTS.items():
        assert measured.per_pod(process) <= most, measured.requests[process]
    late_s = measured.delays_s["scheduler", "Scheduled"]
    assert len(late_s) == len(measured.stamps_s) == num_pods
    assert median(late_s) <= USUALLY_LATE_S
    assert max(late_s) <= MOST_LATE_S
    # Event times are whole seconds, and the scheduler may be slow to read the response.
    stamps_s = sorted(measured.stamps_s)
    assert stamps_s[0] >= -1.1
    assert stamps_s[-1] <= MOST_LATE_S
    taken = [entry for entry in entries if entry["responseStatus"]["code"] < 400]
    assert without_effect(taken) == []
