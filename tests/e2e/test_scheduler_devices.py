"""Dynamic resource allocation on a real API server: claims get devices, and pods use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.formats.objects import allocated, device_class, device_slice
from tests.support.api import until

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

DEVICES = "/apis/resource.k8s.io/v1"


def driver(site: Site) -> str:
    """Return the name of the site's device driver and device class."""
    return f"{site.name}.example.com"


def serve(site: Site, *by_node: tuple[str, tuple[str, ...]], selector: str = "") -> None:
    """Create the devices of nodes, and the class that selects them."""
    name = driver(site)
    text = selector or f"device.driver == '{name}'"
    site.create(f"{DEVICES}/deviceclasses", device_class(name, text))
    for node, devices in by_node:
        made = device_slice(node, *devices, driver=name)
        site.create(f"{DEVICES}/resourceslices", made)


def claims(site: Site) -> str:
    return f"{DEVICES}/namespaces/{site.name}/resourceclaims"


def request(site: Site, count: int = 1) -> dict[str, Any]:
    exactly = {"deviceClassName": driver(site), "count": count}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def claim(site: Site, name: str, count: int = 1) -> None:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": request(site, count),
    }
    site.api.post(claims(site), body)


def names(claim: str) -> list[dict[str, str]]:
    return [{"name": "gpu", "resourceClaimName": claim}]


def node_of(site: Site, pod: str) -> str:
    found = site.api.get(f"/api/v1/namespaces/{site.name}/pods/{pod}")
    return str(found["spec"].get("nodeName") or "")


def status(site: Site, name: str) -> dict[str, Any]:
    return dict(site.api.get(f"{claims(site)}/{name}").get("status", {}))


def test_a_claim_that_has_its_device_leads_its_pod_there(site: Site) -> None:
    _, wanted = site.nodes(2)
    serve(site, (wanted, ("gpu-0", "gpu-1")))
    claim(site, "given")
    given = allocated("gpu-1", node_name=wanted)
    given["allocation"]["devices"]["results"][0]["driver"] = driver(site)
    site.api.patch(f"{claims(site)}/given/status", {"status": given})
    site.scheduler()
    site.pod("p", resourceClaims=names("given"))
    until(lambda: node_of(site, "p") == wanted, "the pod is where its device is")
    uid = site.api.get(f"/api/v1/namespaces/{site.name}/pods/p")["metadata"]["uid"]
    reserved = status(site, "given")["reservedFor"]
    assert [r["uid"] for r in reserved] == [uid]


def test_a_claim_without_devices_gets_them_before_its_pod_is_bound(site: Site) -> None:
    bare, rich = site.nodes(2)
    serve(site, (rich, ("gpu-0", "gpu-1", "gpu-2")))
    claim(site, "two", 2)
    site.scheduler()
    site.pod("p", resourceClaims=names("two"))
    until(lambda: node_of(site, "p") == rich, "the pod is where there are devices")
    got = status(site, "two")
    results = got["allocation"]["devices"]["results"]
    assert {(r["request"], r["pool"]) for r in results} == {("gpu", rich)}
    assert len({r["device"] for r in results}) == 2
    assert len(got["reservedFor"]) == 1
    claim(site, "two-more", 2)
    site.pod("q", resourceClaims=names("two-more"))
    site.await_event("q", f"too few devices free: 2 of class {driver(site)}")
    assert not node_of(site, "q")
    assert bare


def test_a_claim_of_a_deleted_node_gets_other_devices(site: Site) -> None:
    """A scheduler that was killed before the bind leaves a claim that its pod has reserved."""
    gone, left = site.nodes(2)
    serve(site, (gone, ("gpu-0",)), (left, ("gpu-0",)))
    claim(site, "c")
    site.pod("p", resourceClaims=names("c"))
    uid = site.api.get(f"/api/v1/namespaces/{site.name}/pods/p")["metadata"]["uid"]
    given = allocated("gpu-0", node_name=gone, uids=(uid,))
    given["allocation"]["devices"]["results"][0]["driver"] = driver(site)
    site.api.patch(f"{claims(site)}/c/status", {"status": given})
    site.api.delete(f"/api/v1/nodes/{gone}")
    site.scheduler()
    until(lambda: node_of(site, "p") == left, "the pod has devices of the other node")
    got = status(site, "c")
    assert [r["pool"] for r in got["allocation"]["devices"]["results"]] == [left]
    assert [r["uid"] for r in got["reservedFor"]] == [uid]


def test_claims_of_a_template_are_made_for_each_pod_of_a_gang(site: Site) -> None:
    nodes = site.nodes(2)
    serve(site, *((node, ("gpu-0",)) for node in nodes))
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {"spec": request(site)},
    }
    site.api.post(f"{DEVICES}/namespaces/{site.name}/resourceclaimtemplates", template)
    site.scheduler()
    site.gang("g", 2, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    until(lambda: {node_of(site, f"g-{i}") for i in range(2)} == set(nodes), "one pod a device")


def test_a_selector_that_is_not_evaluated_here_is_named(site: Site) -> None:
    (node,) = site.nodes(1)
    strange = "device.attributes['x.example.com'].model.matches('a+')"
    serve(site, (node, ("gpu-0",)), selector=strange)
    claim(site, "c")
    site.scheduler()
    site.pod("p", resourceClaims=names("c"))
    site.await_event("p", "matches(), which is not supported")


def test_a_claim_gets_two_devices_of_one_kind_by_the_first_alternative_that_there_is(
    site: Site,
) -> None:
    (node,) = site.nodes(1)
    kind = f"{driver(site)}/kind"
    made = [
        {"name": f"gpu-{i}", "attributes": {"kind": {"string": k}}} for i, k in enumerate("abab")
    ]
    serve(site, (node, tuple(made)))
    asked = {"deviceClassName": driver(site)}
    want = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "four", **asked, "count": 4},
            {"name": "two", **asked, "count": 2},
        ],
    }
    told = {"opaque": {"driver": driver(site), "parameters": {}}}
    devices = {
        "requests": [want],
        "constraints": [{"matchAttribute": kind, "requests": ["gpu"]}],
        "config": [told],
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pair"},
        "spec": {"devices": devices},
    }
    site.api.post(claims(site), body)
    rest = {"requests": [{"name": "all", "exactly": {**asked, "allocationMode": "All"}}]}
    other = {**body, "metadata": {"name": "rest"}, "spec": {"devices": rest}}
    site.api.post(claims(site), other)
    site.scheduler()
    site.pod("p", resourceClaims=names("pair"))
    until(lambda: node_of(site, "p") == node, "the pod is where there are devices")
    got = status(site, "pair")["allocation"]["devices"]
    assert got["config"] == [{"source": "FromClaim", **told}]
    results = got["results"]
    assert [(r["request"], r["device"]) for r in results] == [
        ("gpu/two", "gpu-0"),
        ("gpu/two", "gpu-2"),
    ]
    site.pod("q", resourceClaims=names("rest"))
    site.await_event("q", f"all of class {driver(site)}")


def test_dear_claims_of_one_user_stop_no_session(site: Site) -> None:
    """Long selectors, endless searches and unsatisfiable constraints do not delay other gangs."""
    nodes = site.nodes(4)
    colour = f"{driver(site)}/colour"
    made = [
        {"name": f"gpu-{i}", "attributes": {"colour": {"string": "abcdefg"[i % 7]}}}
        for i in range(16)
    ]
    serve(site, *((node, tuple(made)) for node in nodes))
    model = f"device.attributes['{driver(site)}'].colour"
    long = " || ".join(f"{model} == 'x{i}'" for i in range(120))
    exactly = {"deviceClassName": driver(site), "count": 1}
    for number in range(4):
        texts = [f"{long} || {model} == '{number}-{i}'" for i in range(4)]
        selectors = [{"cel": {"expression": text}} for text in texts]
        dear = [
            {"name": f"r{i}", "exactly": {**exactly, "selectors": selectors[i:]}} for i in range(4)
        ]
        tied = [{"name": f"r{i}", "exactly": exactly} for i in range(8)]
        constraints = [{"distinctAttribute": colour}]
        for name, spec in (
            (f"dear-{number}", {"devices": {"requests": dear}}),
            (f"tied-{number}", {"devices": {"requests": tied, "constraints": constraints}}),
        ):
            body = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": spec,
            }
            site.api.post(claims(site), body)
            site.pod(name, resourceClaims=names(name))
    scheduler = site.scheduler()
    claim(site, "plain")
    site.pod("plain", resourceClaims=names("plain"))
    site.pod("bare")
    for name in ("plain", "bare"):
        until(lambda name=name: node_of(site, name), "pods of others start")
    # No device satisfies these claims, even if not all selectors have been evaluated.
    for name in ("tied-0", "dear-0"):
        until(
            lambda name=name: any(
                why in event["message"]
                for event in site.events(name)
                for why in ("too few devices free", "evaluated in a later session")
            ),
            "it is told why it waits",
        )
    assert scheduler.ask("/healthz")[0] == 200
    assert scheduler.num_broken() == 0
    # Claims like these made sessions of 3 s to 122 s. A session with the solver has 2 s.
    sessions = "volcano_e2e_scheduling_latency_milliseconds"
    number = scheduler.metric(f"{sessions}_count")
    assert scheduler.metric(f"{sessions}_bucket", le="10240.0") >= number > 0
