"""Requests of a tenant that fill their priority level in the API server delay no component.

The tests use the chart's FlowSchemas unchanged. The level of service accounts is small, so that
some dozens of requests fill it. Each request waits for a webhook that does not respond.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.support.api import Refused, until
from tests.support.shared import ROOT
from tests.support.webhooks import make_namespace, silent_webhook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.kubectl import Kubectl
    from optsched.local.plane import ControlPlane
    from tests.support.api import Api
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

Raw = dict[str, Any]

SYSTEM: Final = "volcano-system"
ACCOUNT: Final = "volcano-scheduler"
ACCESS: Final = frozenset(
    {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
)
SCHEMAS: Final = ("volcano-requests", "volcano-leases")
LEVEL: Final = "workload-low"
"""The level at which the API server takes requests of service accounts by default."""

FLOOD: Final = 60
"""Requests at one time: several times as many as the small level has seats."""

UNANSWERED: Final = (Refused, json.JSONDecodeError, OSError, HTTPException)
"""Among others 429 without a Status."""

WAITED: Final = "apiserver_flowcontrol_request_wait_duration_seconds_bucket"
FIELD: Final = re.compile(r'(\w+)="([^"]*)"')


def flow_metric(kubectl: Kubectl, name: str, **labels: str) -> float:
    """Return the sum of the samples of an API server metric with the given labels."""
    lines = kubectl("get", "--raw", "/metrics").splitlines()
    found = [line for line in lines if line.startswith(f"{name}{{")]
    wanted = labels.items()
    return sum(
        float(line.rpartition(" ")[2])
        for line in found
        if wanted <= dict(FIELD.findall(line)).items()
    )


@pytest.fixture
def account(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Path]:
    """Yield a kubeconfig of the chart's scheduler, with its rights and the chart's FlowSchemas."""
    kubectl = control_plane.kubectl
    make_namespace(api, SYSTEM)
    chart = yaml.safe_load_all((ROOT / "deploy" / "volcano-development.yaml").read_text())
    made = [
        obj
        for obj in chart
        if obj
        and (
            (obj["kind"] in ACCESS and obj["metadata"]["name"] == ACCOUNT)
            or (obj["kind"] == "FlowSchema" and obj["metadata"]["name"] in SCHEMAS)
        )
    ]
    assert {obj["kind"] for obj in made} == ACCESS | {"FlowSchema"}
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    try:
        kubectl("apply", "--server-side", "-f", "-", input=manifest)
        token = kubectl("create", "token", ACCOUNT, "-n", SYSTEM, "--duration=1h").strip()
        config = json.loads(control_plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = tmp_path / "account"
        path.write_text(json.dumps(config))
        yield path
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", input=manifest)


@contextmanager
def small_level(kubectl: Kubectl) -> Iterator[None]:
    """Give the priority level of service accounts few seats while the context is open."""

    def change(spec: Raw, *, is_default: bool) -> None:
        mark = {"apf.kubernetes.io/autoupdate-spec": str(is_default).lower()}
        patch = {"metadata": {"annotations": mark}, "spec": {"limited": spec}}
        told = json.dumps(patch)
        kubectl("patch", "prioritylevelconfiguration", LEVEL, "--type=merge", "-p", told)

    before = kubectl.json("get", "prioritylevelconfiguration", LEVEL)["spec"]["limited"]
    few = {"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0}
    change({**before, **few}, is_default=False)

    def is_small() -> bool:
        name = "apiserver_flowcontrol_current_limit_seats"
        return 0 < flow_metric(kubectl, name, priority_level=LEVEL) < FLOOD / 2

    try:
        until(is_small, f"{LEVEL} has few seats")
        yield
    finally:
        change({"borrowingLimitPercent": None, **before}, is_default=True)


@contextmanager
def flood(site: Site, kubectl: Kubectl) -> Iterator[None]:
    """Send requests that wait, as a tenant's service account, until their level is full."""
    space = f"{site.name}-crowd"
    make_namespace(site.api, space)
    kubectl(
        "create",
        "rolebinding",
        "crowd",
        "--clusterrole=edit",
        f"--serviceaccount={space}:crowd",
        "-n",
        space,
    )
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{space}")
    crowd = site.api.as_user(f"system:serviceaccount:{space}:crowd", *groups)
    path = f"/api/v1/namespaces/{space}/configmaps"
    is_over = Event()

    def send() -> None:
        try:
            while not is_over.is_set():
                with_name = {"metadata": {"generateName": "flood-"}}
                try:
                    crowd.post(path, {"apiVersion": "v1", "kind": "ConfigMap", **with_name})
                except UNANSWERED:
                    is_over.wait(0.2)
        finally:
            crowd.close()

    def is_full() -> bool:
        name = "apiserver_flowcontrol_current_inqueue_requests"
        return flow_metric(kubectl, name, flow_schema="service-accounts") > 0

    rule = ("", "v1", "configmaps", "CREATE")
    with silent_webhook(site.api, space, *rule), ThreadPoolExecutor(FLOOD) as pool:
        sent = [pool.submit(send) for _ in range(FLOOD)]
        try:
            until(is_full, f"requests wait for seats of {LEVEL}")
            yield
            # Between two checks the server may have refused all requests, which then wait to retry.
            until(is_full, "the flood goes on")
        finally:
            is_over.set()
    for each in sent:
        each.result()
    site.api.delete(f"/api/v1/namespaces/{space}")


def test_a_gang_is_bound_while_requests_of_a_tenant_wait(
    control_plane: ControlPlane, site: Site, account: Path
) -> None:
    kubectl = control_plane.kubectl
    site.nodes(1)
    with small_level(kubectl), flood(site, kubectl):
        scheduler = site.scheduler(kubeconfig=account)
        site.gang("team", 3)
        site.await_bound("team", 3)
        site.await_phase("team", "Running")
        scheduler.stop()
    ours = {"flow_schema": SCHEMAS[0], "execute": "true"}
    sent = flow_metric(kubectl, WAITED, **ours, le="+Inf")
    assert sent > 0
    assert flow_metric(kubectl, WAITED, **ours, le="1") == sent
    rejected = "apiserver_flowcontrol_rejected_requests_total"
    assert flow_metric(kubectl, rejected, flow_schema=SCHEMAS[0]) == 0
