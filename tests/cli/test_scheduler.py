"""Tests of the flags of `optsched scheduler`; tests/kube and tests/e2e run the scheduler."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from optsched.cli.services.scheduler import GRAMMAR
from optsched.cli.services.service_options import translate
from optsched.cluster.node_resources import Sharding, ShardMode
from optsched.kube.client.client import ConfigError
from optsched.kube.runtime.leader_election import Election, LeaseTimes
from optsched.kube.scheduler import process as live
from optsched.kube.serving.certificates import CertificateFiles
from optsched.kube.serving.metrics_server import SecureMetrics
from optsched.kube.serving.tls_listener import Address
from optsched.policy.policy import SolverKind
from tests.cli.served import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.kube.scheduler.process import Settings


Command: TypeAlias = "Served[Settings]"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    with served("scheduler", live, monkeypatch) as command:
        yield command


def test_without_flags(command: Command) -> None:
    settings = command.told()
    assert settings.kubeconfig == ""
    assert settings.policy.policy.name == "volcano-default"
    assert settings.pods.scheduler_names == ("volcano", "optsched")
    assert settings.pods.default_queue == "default"
    assert (settings.solver, settings.period_s) == (None, None)
    assert settings.election == Election("volcano-system", "volcano")
    assert settings.listen == (Address("", 8080),)
    assert settings.node_labels == ()
    assert not settings.reports_gangs


def test_every_flag_has_its_effect(command: Command, tmp_path: Path) -> None:
    settings = command.told(
        *("--kubeconfig", "a.conf", "--config", "max-throughput", "--solver", "none"),
        *("--scheduler-name", "gpu", "--default-queue", "q", "--schedule-period", "1m500ms"),
        *("--node-selector", "pool:gpu,pool:big", "--node-selector", "zone: a"),
        *("--listen-address", "127.0.0.1:1", "--healthz-address", ":2"),
        *("--lock-namespace", "ns", "--lock-name", "lock", "--dump-dir", str(tmp_path)),
        *("--leader-elect-lease-duration", "30s", "--leader-elect-renew-deadline", "20s"),
        *("--leader-elect-retry-period", "500ms", "--scheduled-events", "gangs"),
    )
    assert settings.kubeconfig == "a.conf"
    assert settings.reports_gangs
    assert settings.policy.policy.name == "max-throughput"
    assert settings.solver is SolverKind.NONE
    assert settings.pods.scheduler_names == ("gpu",)
    assert settings.pods.default_queue == "q"
    assert settings.period_s == 60.5
    assert settings.node_labels == (("pool", "gpu"), ("pool", "big"), ("zone", "a"))
    assert settings.listen == (Address("127.0.0.1", 1), Address("", 2))
    assert settings.election == Election("ns", "lock", LeaseTimes(30, 20, 0.5))
    assert settings.dump_dir == tmp_path


VOLCANOS = (
    "--logtostderr",
    "--scheduler-conf=POLICY",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--leader-elect=false",
    "--kube-api-qps=2000",
    "--kube-api-burst",
    "2000",
    "--schedule-period=1s",
    "--node-worker-threads=20",
    "--scheduler-name=volcano",
    "-v=3",
    "2>&1",
)
"""As in the Deployment of Volcano's Helm chart."""


def test_volcanos_manifest_works_as_it_is(command: Command, tmp_path: Path) -> None:
    policy = tmp_path / "volcano-scheduler.conf"
    policy.write_text('actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}]}]\n')
    result = command.invoke(*(flag.replace("POLICY", str(policy)) for flag in VOLCANOS))
    assert result.exit_code == 0, result.output
    (settings,) = command.settings
    assert settings.policy.policy.actions == ("enqueue", "allocate")
    assert settings.election is None
    assert settings.listen == (Address("", 8080), Address("", 11251))
    assert settings.period_s == 1
    (line,) = result.stderr.splitlines()
    assert line.endswith(
        " WARNING ignored arguments: --logtostderr, --enable-metrics, --kube-api-qps, "
        "--kube-api-burst, --node-worker-threads, 2>&1"
    )


CERTIFICATE = ("--metrics-tls-cert-file=/m/tls.crt", "--metrics-tls-private-key-file=/m/tls.key")


def test_metrics_are_served_over_tls_with_a_certificate(command: Command) -> None:
    files = CertificateFiles(Path("/m/tls.crt"), Path("/m/tls.key"))
    assert command.told().metrics is None
    settings = command.told(*CERTIFICATE)
    assert settings.metrics == SecureMetrics(Address("", 8444), files, needs_rights=False)
    assert settings.listen == (Address("", 8080),)
    settings = command.told(*CERTIFICATE, "--metrics-address=:1", "--metrics-auth=true")
    assert settings.metrics == SecureMetrics(Address("", 1), files, needs_rights=True)
    settings = command.told(*CERTIFICATE, "--metrics-auth=false")
    assert settings.metrics is not None
    assert not settings.metrics.needs_rights


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--metrics-auth",), "--metrics-auth needs --metrics-tls-cert-file"),
        (("--metrics-address=:1",), "--metrics-address needs --metrics-tls-cert-file"),
        (CERTIFICATE[:1], "--metrics-tls-cert-file and --metrics-tls-private-key-file must "),
        ((*CERTIFICATE, "--metrics-address=x"), "'x' is not an address: write HOST:PORT or :PORT"),
    ],
)
def test_what_metrics_need_is_named(
    command: Command, flags: tuple[str, ...], sentence: str
) -> None:
    result = command.invoke(*flags)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("given", "kept", "ignored"),
    [
        (["--leader-elect"], ["--leader-elect"], []),
        (["--leader-elect=true"], ["--leader-elect"], []),
        (["--leader-elect=F"], ["--no-leader-elect"], []),
        (["--enable-healthz=1"], ["--enable-healthz"], []),
        (["-v=4"], ["-v", "4"], []),
        (["-v", "4"], ["-v", "4"], []),
        (["--solver=none"], ["--solver=none"], []),
        (["--cache-dumper=false", "--solver", "none"], ["--solver", "none"], ["--cache-dumper"]),
        (["--kube-api-qps", "50", "--v", "1"], ["--v", "1"], ["--kube-api-qps"]),
        (["--plugins-dir="], ["--plugins-dir="], []),
        (["--resync-period"], [], ["--resync-period"]),
    ],
)
def test_how_go_writes_flags(given: list[str], kept: list[str], ignored: list[str]) -> None:
    assert translate(given, GRAMMAR) == (kept, ignored)


@pytest.mark.parametrize(
    ("names", "lease"), [(["one"], "one"), (["one", "two"], "volcano"), ([], "volcano")]
)
def test_schedulers_of_other_names_have_other_leases(
    command: Command, names: list[str], lease: str
) -> None:
    flags = [part for name in names for part in ("--scheduler-name", name)]
    election = command.told(*flags).election
    assert election is not None
    assert election.name == lease


@pytest.mark.parametrize(
    ("flags", "sharding"),
    [
        ([], Sharding(ShardMode.NONE, "volcano")),
        (["--scheduler-sharding-mode=hard"], Sharding(ShardMode.HARD, "volcano")),
        (
            ["--scheduler-sharding-mode", "soft", "--scheduler-sharding-name=lab"],
            Sharding(ShardMode.SOFT, "lab"),
        ),
        (["--sharding-mode=soft", "--sharding-name", "lab"], Sharding(ShardMode.SOFT, "lab")),
    ],
)
def test_a_shard_is_asked_for(command: Command, flags: list[str], sharding: Sharding) -> None:
    assert command.told(*flags).pods.sharding == sharding


def test_more_is_said_on_demand(command: Command) -> None:
    command.told("-v", "4")
    assert logging.getLogger("optsched").level == logging.DEBUG
    command.told("-v=3")
    assert logging.getLogger("optsched").level == logging.INFO


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--no-such-flag"], "No such option"),
        (["--scheduler-sharding-mode=firm"], "'firm' is not one of 'none', 'soft', 'hard'"),
        (["--solver", "magic"], "'magic' is not one of 'cpsat', 'none'"),
        (["--schedule-period", "soon"], "--schedule-period"),
        (["--schedule-period", "0s"], "0s: must be longer than zero"),
        (["--leader-elect=perhaps"], "'perhaps' is neither true nor false"),
        (["--node-selector", "gpu"], "'gpu': write LABEL:VALUE"),
        (["--node-selector", ":gpu"], "':gpu': write LABEL:VALUE"),
        (["-v=much"], "'much' is not a whole number"),
        (["--listen-address", "here"], "'here' is not an address: write HOST:PORT or :PORT"),
        (["--leader-elect-lease-duration", "5s"], "each has to be longer than the next"),
    ],
)
def test_flags_that_are_wrong_are_named(
    command: Command, arguments: list[str], complaint: str
) -> None:
    assert complaint in command.complaint(*arguments)


def test_a_policy_that_does_not_exist_is_told(command: Command) -> None:
    assert "no-such-model" in command.complaint("--config", "no-such-model")


def test_a_broken_policy_is_told_with_line_and_column(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "policy.conf"
    path.write_text("actions: alocate\ntiers: []\n")
    complaint = command.complaint("--config", str(path))
    assert f'{path}:1:10: actions: there is no action "alocate"' in complaint


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConfigError("kubeconfig cannot be used: x"), "kubeconfig cannot be used: x"),
        (OSError(98, "address already in use"), "address already in use"),
        (OSError(2, "No such file or directory", "a.py"), "a.py: No such file or directory"),
    ],
)
def test_what_can_not_be_had_ends_it(command: Command, error: Exception, sentence: str) -> None:
    command.error = error
    result = command.invoke()
    assert result.exit_code == 1
    assert result.stderr == f"Error: {sentence}\n"


def test_help_does_not_wait_for_the_client() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from optsched.cli.main import main; "
        "assert CliRunner().invoke(main, ['scheduler', '--help']).exit_code == 0; "
        "assert 'kubernetes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
