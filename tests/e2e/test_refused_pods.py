"""Jobs whose pods the API server refuses show the responsible quota or webhook to users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.support.api import until
from tests.support.webhooks import denying_webhook

if TYPE_CHECKING:
    from tests.support.live import Site
    from tests.support.shell import Shell

pytestmark = pytest.mark.e2e

POLICY = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: proportion}, {name: nodeorder}, {name: resourcequota}]
"""
GANG_SIZE = 3
WAITS = 8
WEBHOOK = "cost-centre.example.org"
DENIAL = "pods without a cost centre are not created"


def add_quota(site: Site, **hard: str) -> None:
    """Limit the namespace, and wait until the API server enforces it."""
    path = f"/api/v1/namespaces/{site.name}/resourcequotas"
    limits = {name.replace("__", "/").replace("_", "."): value for name, value in hard.items()}
    site.api.post(path, {"metadata": {"name": "team"}, "spec": {"hard": limits}})
    until(lambda: site.api.get(f"{path}/team")["status"]["used"].keys() == limits.keys(), "counted")


def submit(site: Site, name: str, **fields: Any) -> None:
    """Create a job of three pods with a limit of one CPU each; all of them start together."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"cpu": "1"}}}
    spec = {"restartPolicy": "Never", "containers": [container]}
    task = {"name": "w", "replicas": GANG_SIZE, "template": {"spec": spec}}
    job = {
        "apiVersion": kinds.JOB.api_version,
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"schedulerName": site.name, "minAvailable": GANG_SIZE, "tasks": [task], **fields},
    }
    site.api.post(collection_path(kinds.JOB, site.name), job)


def status(site: Site, name: str) -> dict[str, Any]:
    found: dict[str, Any] = site.api.get(object_path(kinds.JOB, site.name, name))["status"]
    return found


def num_pods(site: Site, name: str) -> int:
    path = collection_path(kinds.POD, site.name)
    return len(site.api.items(path, labelSelector=f"volcano.sh/job-name={name}"))


def await_running(site: Site, *names: str) -> str:
    """Wait until all pods of one of these jobs run, and return its name."""

    def running() -> str:
        return next((name for name in names if status(site, name).get("running") == GANG_SIZE), "")

    return until(running, f"one of {names} runs")


def await_reason(shell: Shell, job: str, *texts: str) -> str:
    """Wait until `job explain` gives a reason with all these texts, and return the line."""

    def reason() -> str:
        result = shell.try_(f"job explain {job}")
        lines = result.stdout.splitlines()
        line = next((line for line in lines if line.startswith("Reason:")), "")
        return line if result.exit_code == WAITS and all(text in line for text in texts) else ""

    return until(reason, f"{job} is explained by {texts}")


# --- quotas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resource", ["limits_cpu", "count__pods", "pods", "requests_cpu"], ids=lambda name: name
)
def test_gangs_of_a_quota_start_whole_one_after_the_other(
    site: Site, shell: Shell, resource: str
) -> None:
    """Two gangs of three share a quota of four; with half of each, neither gang could start."""
    site.nodes(1, cpus=2 * GANG_SIZE)
    add_quota(site, **{resource: "4"})
    site.controllers()
    site.scheduler("--config", str(site.file("policy.conf", POLICY)))
    jobs = {"one", "two"}
    for job in sorted(jobs):
        submit(site, job)
    first = await_running(site, *jobs)
    (second,) = jobs - {first}
    quota = f"ResourceQuota {site.name}/team"
    counted = resource.replace("__", "/").replace("_", ".")
    await_reason(shell, second, "ResourceQuotaExceeded", quota, f"3 {counted} are requested")
    assert num_pods(site, second) == 0
    shell(f"job delete {first}")
    assert await_running(site, second) == second
    assert site.events(first, "FailedCreate") + site.events(second, "FailedCreate") == []


def test_a_quota_that_keeps_pods_from_being_created_is_named(site: Site, shell: Shell) -> None:
    """Without the plugin `resourcequota`, half of a gang is created."""
    site.nodes(1)
    add_quota(site, count__pods="2")
    site.controllers()
    site.scheduler()
    submit(site, "train")
    reason = await_reason(shell, "train", "FailedCreate", "exceeded quota: team", "count/pods=2")
    assert num_pods(site, "train") == 2
    assert_named(shell, "train", reason)
    path = f"/api/v1/namespaces/{site.name}/resourcequotas/team"
    site.api.patch(path, {"spec": {"hard": {"count/pods": "3"}}})
    await_running(site, "train")
    assert_not_named(shell, "train", "exceeded quota")


def test_a_quota_that_keeps_a_claim_from_being_created_is_named(site: Site, shell: Shell) -> None:
    """All pods of the job exist, and wait for the claim."""
    site.nodes(1)
    add_quota(site, persistentvolumeclaims="0")
    site.controllers()
    site.scheduler()
    amount = {"resources": {"requests": {"storage": "1Gi"}}}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", **amount}
    submit(site, "train", volumes=[{"mountPath": "/data", "volumeClaim": claim}])
    texts = ("FailedCreate", "PersistentVolumeClaim", "exceeded quota: team")
    assert_named(shell, "train", await_reason(shell, "train", *texts))
    path = f"/api/v1/namespaces/{site.name}/resourcequotas/team"
    site.api.patch(path, {"spec": {"hard": {"persistentvolumeclaims": "1"}}})
    claims = f"/api/v1/namespaces/{site.name}/persistentvolumeclaims"
    until(lambda: site.api.items(claims), "the claim is there")
    await_reason(shell, "train", "VolumeUnavailable")
    assert "exceeded quota" not in shell("job list -o wide")


# --- webhooks ------------------------------------------------------------------------------------


def test_the_whole_of_a_long_refusal_is_shown(site: Site, shell: Shell) -> None:
    """The API server takes events of at most 1024 characters."""
    rules = "; ".join(f"rule {number} of the policy is violated" for number in range(80))
    denial = f"{DENIAL}: {rules}: see the wiki"
    site.nodes(1)
    site.controllers()
    site.scheduler()
    with denying_webhook(site.api, site.name, WEBHOOK, denial):
        submit(site, "train")
        reason = await_reason(shell, "train", "FailedCreate", denial)
        assert_named(shell, "train", reason)


def test_a_webhook_that_keeps_pods_from_being_created_is_named(site: Site, shell: Shell) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    with denying_webhook(site.api, site.name, WEBHOOK, DENIAL):
        submit(site, "train")
        reason = await_reason(shell, "train", "FailedCreate", f'webhook "{WEBHOOK}"', DENIAL)
        assert num_pods(site, "train") == 0
        assert_named(shell, "train", reason)
    await_running(site, "train")
    assert_not_named(shell, "train", WEBHOOK)


def assert_named(shell: Shell, job: str, reason: str) -> None:
    """Check that other commands give the reason of `job explain`, and only for this job."""
    sentence = reason.removeprefix("Reason:").strip()
    refusal = sentence.removeprefix("FailedCreate: ")
    (row,) = (line for line in shell("job list -o wide").splitlines() if line.startswith(job))
    assert "FailedCreate" in row
    assert refusal in row
    assert "FailedCreate" in shell(f"job view {job}")
    listed = shell.try_("job list")
    assert f"job {job}: FailedCreate: {refusal}" in " ".join(listed.stderr.split())
    assert "FailedCreate" not in listed.stdout


def assert_not_named(shell: Shell, job: str, text: str) -> None:
    """Check that commands omit a past reason, although its events still exist."""
    assert text not in shell(f"job explain {job}")
    assert text not in shell("job list -o wide")
    assert text not in shell.try_("job list").stderr
