"""What we write, as the API server's own audit log has it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from optsched.local.components import API_SERVER, Options
from optsched.local.files import shipped
from optsched.local.plane import ControlPlane
from tests.support.api import Api
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
MOST_WRITES = 5
OURS = "optsched/"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "RequestResponse"},
    ],
}


class Audit:
    """An audit log, read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[Raw]:
        """All that was written, by whomever."""
        lines = self._path.read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [e for e in found if e["responseStatus"]["code"] < 400]


def is_ours(entry: Raw) -> bool:
    return str(entry.get("userAgent", "")).startswith(OURS)


def what(entry: Raw) -> str:
    ref = entry["objectRef"]
    part = f"/{ref['subresource']}" if "subresource" in ref else ""
    return f"{entry['verb']} {ref['resource']}{part}"


def without_effect(entries: list[Raw]) -> list[str]:
    """Our writes after which an object is what it was: its version has been seen before."""
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
def audited(
    assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, Audit]]:
    """A plane of its own, that notes every write."""
    folder = tmp_path_factory.mktemp("audited")
    policy, log = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(yaml.safe_dump(POLICY))
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    extra = {API_SERVER: [*flags, "--audit-log-mode=blocking"]}
    options = Options(extra_args=extra, definitions=shipped("crds"))
    with ControlPlane.start(folder / "plane", assets, options) as plane:
        yield plane, Audit(log)


@pytest.fixture
def site(audited: tuple[ControlPlane, Audit], tmp_path: Path) -> Iterator[Site]:
    plane, _ = audited
    api = Api(plane.kubeconfig)
    with Site("writes", api, plane.kubeconfig, tmp_path) as site:
        yield site
    api.close()


def test_few_writes_a_pod_and_none_in_vain(site: Site, audited: tuple[ControlPlane, Audit]) -> None:
    """Jobs from their submission to their end: pods, binds, status, events and all."""
    site.nodes(4, cpus=32)
    site.scheduler("--schedule-period", "1s")
    site.controllers()
    jobs = [LiveJob(site, job(task("w", NUM_PODS), name=f"j{i}")) for i in range(NUM_JOBS)]
    for each in jobs:
        each.await_phase("Running")
        each.await_count(running=NUM_PODS)
    for each in jobs:
        each.succeed(*(f"w-{i}" for i in range(NUM_PODS)))
    for each in jobs:
        each.await_phase("Completed")
    entries = audited[1].entries()
    ours = Counter(map(what, filter(is_ours, entries)))
    print(ours)
    assert ours["create pods"] == ours["create pods/binding"] == NUM_JOBS * NUM_PODS
    assert ours.total() <= MOST_WRITES * NUM_JOBS * NUM_PODS, ours
    assert without_effect(entries) == []
