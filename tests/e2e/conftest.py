"""Fixtures that start one control plane for all tests on a real cluster."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import Assets, AssetsError, require, shipped
from optsched.local.components import Options
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
    """Deselect the e2e tests unless a marker expression is given."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("e2e")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that prints despite pytest's capture.

    A long build without output would look stuck.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def write(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{message}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def assets(report: Callable[[str], None]) -> Assets:
    """Return the binaries. Without them the tests fail in CI and are skipped elsewhere."""
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
    """Yield a running control plane with the project's CRDs.

    `.kubectl(...)` returns text, and `.kubectl.json(...)` returns objects.
    """
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), assets, options) as plane:
        yield plane


@pytest.fixture(scope="session", autouse=True)
def _forked_services() -> Iterator[None]:
    """Start services by fork instead of exec, which saves two thirds of the processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "start", staticmethod(ForkedService))
        yield


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """Yield a client with the administrator's rights for the running control plane."""
    api = Api(control_plane.kubeconfig)
    yield api
    api.close()


@pytest.fixture
def site(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Site]:
    """Yield a separate part of the running control plane for one test."""
    with Site(f"site-{next(_SITES)}", api, control_plane.kubeconfig, tmp_path) as site:
        yield site


@pytest.fixture
def shell(site: Site, tmp_path: Path) -> Shell:
    """Return a shell in which a user of the site runs commands."""
    return Shell(site, tmp_path)


@pytest.fixture(scope="module")
def own_plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a separate control plane for a test file whose objects have fixed names."""
    options = Options(definitions=shipped("crds"))
    with ControlPlane.start(tmp_path_factory.mktemp("plane"), assets, options) as plane:
        yield plane
