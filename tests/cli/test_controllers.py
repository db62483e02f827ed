"""Tests of the flags of `optsched controllers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.cli.services.controllers import CONFIG, GRAMMAR
from optsched.cli.services.service_options import translate
from optsched.controllers import hypernode
from optsched.kube.controllers import process as controlling
from optsched.kube.runtime.leader_election import Election, LeaseTimes
from optsched.kube.serving.certificates import CertificateFiles
from optsched.kube.serving.metrics_server import SecureMetrics
from optsched.kube.serving.tls_listener import Address

if TYPE_CHECKING:
    from optsched.kube.controllers.process import Settings

VOLCANO = (
    "--logtostderr --enable-healthz=true --enable-metrics=true --leader-elect=false "
    "--leader-elect-resource-namespace=volcano-system --kube-api-qps=50 --kube-api-burst=100 "
    "--worker-threads=3 --worker-threads-for-gc=5 --worker-threads-for-podgroup=5 -v=4 2>&1"
)
"""As Volcano's chart writes them."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the list of settings with which the controllers would have run."""
    found: list[Settings] = []

    async def run(settings: Settings) -> None:
        found.append(settings)

    monkeypatch.setattr(controlling, "run", run)
    return found


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["controllers", *arguments])
    return result.exit_code, result.output


def test_volcanos_flags_are_understood(ran: list[Settings]) -> None:
    code, output = call(*VOLCANO.split())
    assert code == 0, output
    [settings] = ran
    assert settings.election is None
    assert [address.port for address in settings.listen] == [8081, 11251]


def test_one_of_several_works_unless_told_otherwise(ran: list[Settings]) -> None:
    assert call("--lock-namespace", "ns")[0] == 0
    assert ran[0].election == Election("ns", "vc-controller-manager", LeaseTimes())


def test_controllers_are_chosen(ran: list[Settings]) -> None:
    assert call("--controllers", "queue")[0] == 0
    assert [controller.name for controller in ran[0].controllers] == ["queue"]
    code, output = call("--controllers", "quue")
    assert code == 2
    assert "'quue' is not a controller" in output


def test_the_config_map_is_volcanos_unless_told_otherwise(ran: list[Settings]) -> None:
    assert CONFIG == hypernode.CONFIG
    assert call("--config-map", "ns/name")[0] == 0
    for text in ("name", "/name", "ns/"):
        assert call("--config-map", text)[0] == 2
    assert len(ran) == 1


def test_owners_may_be_passed_over() -> None:
    kept, _ = translate(["--inherit-owner-annotations=false"], GRAMMAR)
    assert kept == ["--no-inherit-owner-annotations"]


@pytest.mark.parametrize("flag", ["--listen-address=nowhere", "--leader-elect-retry-period=20s"])
def test_what_makes_no_sense_is_refused(ran: list[Settings], flag: str) -> None:
    assert call(flag)[0] == 2
    assert ran == []


def test_metrics_are_served_over_tls_with_a_certificate(ran: list[Settings]):
    flags = ("--metrics-tls-cert-file=/c", "--metrics-tls-private-key-file=/k", "--metrics-auth")
    code, output = call(*flags)
    assert code == 0, output
    files = CertificateFiles(Path("/c"), Path("/k"))
    assert ran[-1].metrics == SecureMetrics(Address("", 8444), files, needs_rights=True)
