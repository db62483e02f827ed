"""One control plane for all tests that need a real one."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import Assets, AssetsError, require
from optsched.local.components import Options
from optsched.local.files import shipped
from optsched.local.plane import ControlPlane
from tests.support.api import Api
from tests.support.live import Process, Site
from tests.support.service_process import ForkedService
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SITES = count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless a marker expression asks for them."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("e2e")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints past pytest's capture: a build of minutes may not look like a hang."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def write(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{message}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def assets(report: Callable[[str], None]) -> Assets:
    """The binaries; without them these tests fail where they must run and skip elsewhere."""
    try:
        return require(report)
    except AssetsError as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def control_plane(
    assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A running plane with our CRDs; `.kubectl(...)` gives text, `.kubectl.json(...)` objects."""
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), assets, options) as plane:
        yield plane


@pytest.fixture(scope="session", autouse=True)
def _forked_services() -> Iterator[None]:
    """Have services forked, not executed: that takes a third of the processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "start", staticmethod(ForkedService))
        yield


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """Requests of the administrator to the running plane."""
    api = Api(control_plane.kubeconfig)
    yield api
    api.close()


@pytest.fixture
def site(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Site]:
    """A part of the running plane for one test."""
    with Site(f"site-{next(_SITES)}", api, control_plane.kubeconfig, tmp_path) as site:
        yield site


@pytest.fixture
def shell(site: Site, tmp_path: Path) -> Shell:
    """A user of the site who writes commands."""
    return Shell(site, tmp_path)


@pytest.fixture(scope="module")
def own_plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A plane for one file of tests: for what has names that nobody may change."""
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), assets, options) as plane:
        yield plane
