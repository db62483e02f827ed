"""Failures of schedulers, binds and watches: no pod is lost, and no action happens twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api import Refused, until
from tests.support.proxy import after, binding_of, is_binding, is_watch_of

if TYPE_CHECKING:
    from optsched.local.plane import ControlPlane
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

RBAC = "rbac.authorization.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"


@pytest.mark.parametrize("solver", ["cpsat", "none"])
def test_a_gang_is_completed_by_the_next_scheduler_if_one_dies_half_way(
    site: Site, solver: str
) -> None:
    site.nodes(3)
    proxy = site.proxy()
    gate = proxy.hold(after(3, is_binding))
    first = site.scheduler("--solver", solver, kubeconfig=proxy.kubeconfig)
    site.gang("half", 6)
    gate.await_held(3)
    site.await_bound("half", 3)
    first.kill()
    site.gang("rival", 9)

    second = site.scheduler("--solver", solver)
    site.await_bound("half", 6)
    site.await_waits("rival", "NotEnoughResources")
    assert site.story.num_bound("rival") == 0
    second.await_metric(3, "volcano_schedule_attempts_total", result="scheduled")
    site.complete("half")
    site.await_bound("rival", 9)
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


# --- binds that fail -----------------------------------------------------------------------------


def test_a_pod_that_somebody_else_binds_meanwhile_counts_for_its_gang(
    site: Site,
) -> None:
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    gate = proxy.hold(binding_of("gang-2"))
    site.gang("gang", 4)
    site.await_bound("gang", 3)
    gate.await_held(1)
    (elsewhere,) = site.nodes(1)
    site.api.bind(site.name, "gang-2", elsewhere)
    proxy.open(gate)

    site.await_bound("gang", 4)
    site.await_phase("gang", "Running")
    scheduler.await_metric(1, "optsched_bind_failures_total", reason="Conflict")
    scheduler.await_metric(3, "volcano_schedule_attempts_total", result="scheduled")
    (event,) = until(lambda: site.events("gang-2", "FailedScheduling"), "event on the pod")
    assert event["message"].endswith(f"the pod is already bound to {elsewhere}")
    site.story.assert_bound_once()


def test_a_gang_whose_pod_is_deleted_meanwhile_waits_for_another(site: Site) -> None:
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    gate = proxy.hold(is_binding)
    site.gang("gang", 4)
    gate.await_held(4)
    site.delete_pod("gang-3")
    proxy.open(gate)

    site.await_waits("gang", "NotEnoughTasks")
    scheduler.await_metric(1, "optsched_bind_failures_total", reason="NotFound")
    site.members("gang", range(3, 4))
    site.await_bound("gang", 4)
    site.await_phase("gang", "Running")
    scheduler.await_metric(4, "volcano_schedule_attempts_total", result="scheduled")
    site.story.assert_bound_once()


def test_a_pod_of_the_same_name_is_another_pod(site: Site) -> None:
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    gate = proxy.hold(is_binding)
    site.gang("gang", 2)
    gate.await_held(2)
    site.delete_pod("gang-1")
    site.members("gang", range(1, 2), cpus=9)
    proxy.open(gate)

    site.await_waits("gang", "Impossible")
    assert [pod.node for pod in site.story.pods("gang") if pod.name == "gang-1"] == [""]
    site.delete_pod("gang-1")
    site.members("gang", range(1, 2))
    site.await_bound("gang", 2)
    scheduler.await_metric(2, "volcano_schedule_attempts_total", result="scheduled")
    site.story.assert_bound_once()


def test_a_gang_that_may_not_be_bound_is_tried_again_until_it_may(
    site: Site, control_plane: ControlPlane
) -> None:
    site.nodes(2)
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": site.name}}
    reads = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    told = ["podgroups", "queues", "queues/status", "events"]
    writes = {**reads, "resources": told, "verbs": ["create", "patch"]}
    site.create(f"/apis/{RBAC}/clusterroles", {**role, "rules": [reads, writes]})
    group = RBAC.partition("/")[0]
    user = {"apiGroup": group, "kind": "User", "name": site.name}
    reference = {**user, "kind": "ClusterRole"}
    binding = {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [user]}
    site.create(f"/apis/{RBAC}/clusterrolebindings", binding)
    scheduler = site.scheduler(kubeconfig=control_plane.kubeconfig_for(site.name))

    site.gang("gang", 4)
    site.await_waits("gang", "BindFailed", "cannot create resource")
    assert scheduler.metric("optsched_bind_failures_total", reason="Forbidden") >= 1
    assert site.story.num_bound("gang") == 0
    binds = {**reads, "resources": ["pods/binding"], "verbs": ["create"]}
    path = f"/apis/{RBAC}/clusterroles/{site.name}"
    site.api.patch(path, {"rules": [reads, writes, binds]})
    site.await_bound("gang", 4)
    site.await_phase("gang", "Running")
    site.story.assert_bound_once()


def test_a_gang_of_which_a_policy_refuses_one_pod_is_completed_once_it_does_not(
    site: Site,
) -> None:
    site.nodes(2)
    refuse_bindings(site, "!object.metadata.name.endsWith('-3')")
    scheduler = site.scheduler()
    site.gang("gang", 4)
    site.await_waits("gang", "BindFailed", "not now")
    site.await_bound("gang", 3)
    assert site.group_status("gang")["phase"] != "Running"
    site.api.delete(f"/apis/{ADMISSION}/validatingadmissionpolicybindings/{site.name}")
    site.await_bound("gang", 4)
    site.await_phase("gang", "Running")
    assert scheduler.metric("volcano_schedule_attempts_total", result="error") >= 1
    site.story.assert_bound_once()


def refuse_bindings(site: Site, expression: str) -> None:
    """Create an admission policy that refuses bindings of the site, and wait until it is active."""
    named = {"apiVersion": ADMISSION, "metadata": {"name": site.name}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods/binding"]}]},
        "validations": [{"expression": expression, "message": "not now", "reason": "Forbidden"}],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": site.name}}
    binding = {
        "policyName": site.name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": here},
    }
    kind = "ValidatingAdmissionPolicy"
    parts = (("ies", kind, policy), ("ybindings", f"{kind}Binding", binding))
    for ending, of_kind, spec in parts:
        path = f"/apis/{ADMISSION}/{kind.lower().removesuffix('y')}{ending}"
        site.create(path, {**named, "kind": of_kind, "spec": spec})
    probe = site.pod("probe-3", scheduler="nobody")
    until(lambda: _is_refused(site, probe), "the policy is in force")
    site.delete_pod(probe)


def _is_refused(site: Site, pod: str) -> bool:
    try:
        site.api.bind(site.name, pod, f"{site.name}-0", dryRun="All")
    except Refused as e:
        return e.code == 403
    return False


# --- watches that end ----------------------------------------------------------------------------


def test_an_expired_watch_is_begun_anew(site: Site) -> None:
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    site.gang("before", 2)
    site.await_bound("before", 2)
    proxy.await_watch("pods")
    lists = proxy.hold(lambda method, path: "/pods?" in path and "watch=1" not in path)
    message = "too old resource version: 1 (2)"
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": message}
    assert proxy.end_watches("pods", {"type": "ERROR", "object": expired}) == 1
    lists.await_held(1)
    site.gang("meanwhile", 2)
    site.delete_pod("before-0")
    site.delete_pod("before-1")
    proxy.open(lists)

    site.await_bound("meanwhile", 2)
    site.gang("later", 6)
    site.await_bound("later", 6)
    scheduler.await_metric(1, "optsched_watch_failures_total", kind="pods")
    assert f"pods: cannot be followed: 410 Expired: {message}" in scheduler.log
    scheduler.await_log("pods: followed again")
    site.story.assert_within(site.cpus)


ABSENT = ("/apis/scheduling.k8s.io/v1", "/apis/resource.k8s.io/v1beta")
"""Kinds that the server does not have are asked for again now and then."""


def _is_list(method: str, path: str) -> bool:
    return method == "GET" and "limit=" in path and not path.startswith(ABSENT)


def test_a_watch_that_is_cut_goes_on_where_it_stood(site: Site) -> None:
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    lists = proxy.hold(_is_list)
    for i, plural in enumerate(("pods", "nodes", "podgroups")):
        proxy.await_watch(plural)
        watches = proxy.hold(is_watch_of(plural))
        assert proxy.end_watches(plural) == 1
        watches.await_held(1)
        site.gang(f"gang-{i}", 2)
        proxy.open(watches)
        site.await_bound(f"gang-{i}", 2)
    assert lists.held == []
    assert scheduler.metric("optsched_watch_failures_total") == 0


def test_a_container_that_is_started_again_takes_its_lease_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restarted container does not wait for the lease, because its pod name is unique."""
    monkeypatch.setenv("POD_UID", site.name)
    times = ("--leader-elect-lease-duration", "600s", "--leader-elect-renew-deadline", "500s")
    flags = ("--leader-elect", "--lock-namespace", site.name, *times)
    site.nodes(1)
    first = site.scheduler(*flags)
    site.gang("before", 1)
    site.await_bound("before", 1)
    first.kill()
    site.scheduler(*flags)
    site.gang("after", 1)
    site.await_bound("after", 1)
    site.story.assert_bound_once()
