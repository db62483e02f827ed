"""The API server stops and restarts; a separate control plane protects the other tests."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from bench.recovery import measure
from optsched.local.assets import shipped
from optsched.local.components import API_SERVER, Options
from optsched.local.plane import ControlPlane
from tests.support.api import Api
from tests.support.live import Site
from tests.support.proxy import is_binding, is_watch_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optsched.local.assets import Assets

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("restarts")]

_SITES = count(1)

SLACK = 2.0
"""How much longer than on an idle machine it may take, because other tests run beside this one."""


@pytest.fixture(scope="module")
def plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(tmp_path_factory.mktemp("restarted"), assets, options) as plane:
        yield plane


@pytest.fixture
def own_site(plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    api = Api(plane.kubeconfig)
    with Site(f"site-{next(_SITES)}", api, plane.kubeconfig, tmp_path) as site:
        yield site
    api.close()


def test_an_api_server_that_crashes_between_binds_loses_and_doubles_nothing(
    plane: ControlPlane, own_site: Site
) -> None:
    site = own_site
    site.nodes(4)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    site.gang("before", 4)
    site.await_running("before", 4)
    gate = proxy.hold(is_binding)
    site.gang("during", 6)
    gate.await_held(6)
    plane.kill(API_SERVER)
    site.api.close()
    # Watches fail first, and the scheduler reports an outage once, with its first failure.
    scheduler.await_log("cannot be followed")
    proxy.open(gate)
    assert scheduler.ask("/healthz") == (200, "ok")
    plane.start_component(API_SERVER)

    site.await_bound("during", 6)
    site.gang("after", 6)
    site.await_bound("after", 6)
    site.gang("rest", 1)
    site.await_waits("rest", "NotEnoughResources")
    site.complete("before")
    site.await_bound("rest", 1)
    site.await_running("during", 6)
    scheduler.await_metric(17, "volcano_schedule_attempts_total", result="scheduled")
    # Watches, binds and status updates may all fail until the server is ready.
    (warning,) = (line for line in scheduler.log.splitlines() if " WARNING " in line)
    assert "cannot be followed" in warning
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


def test_what_changes_while_a_watch_can_not_go_on_is_listed(
    plane: ControlPlane, own_site: Site
) -> None:
    site = own_site
    site.nodes(2)
    proxy = site.proxy()
    scheduler = site.scheduler(kubeconfig=proxy.kubeconfig)
    site.gang("before", 4)
    site.await_running("before", 4)
    proxy.await_watch("pods")
    gate = proxy.hold(is_watch_of("pods"))
    assert proxy.end_watches("pods") == 1
    gate.await_held(1)
    site.delete_pod("before-0")
    site.complete("before")
    site.gang("waits", 9)
    # A server keeps no events from before its start.
    plane.kill(API_SERVER)
    site.api.close()
    plane.start_component(API_SERVER)
    site.gang("fits", 8)
    proxy.open(gate)

    site.await_bound("fits", 8)
    assert "pods: cannot be followed: 410 Expired: too old resource version" in scheduler.log
    site.await_waits("waits", "Impossible")
    site.story.assert_bound_once()
    site.story.assert_within(site.cpus)


@pytest.mark.parametrize("fault", ["leader", "container", "server", "watches"])
def test_gangs_are_bound_soon_after_a_fault(plane: ControlPlane, fault: str) -> None:
    """A scheduler has its default leases, and `make bench-recovery` measures an idle machine."""
    (found,) = measure(plane, [fault], 1)
    print(found.row())
    assert found.p50_s <= SLACK * found.most_s
    assert max(found.warnings) <= 1, "one warning a fault and process"
