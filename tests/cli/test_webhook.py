"""Tests of the flags of `optsched webhook`; tests/kube and tests/e2e run the webhook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from optsched.admission.services import DEFAULT_PATHS
from optsched.api.kinds import SECRET, Ref
from optsched.kube.client.client import ConfigError
from optsched.kube.serving.certificates import CertificateFiles
from optsched.kube.serving.metrics_server import SecureMetrics
from optsched.kube.serving.tls_listener import Address
from optsched.kube.webhook import process as webhooking
from tests.cli.served import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.kube.webhook.process import Settings


Command: TypeAlias = "Served[Settings]"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    with served("webhook", webhooking, monkeypatch) as command:
        yield command


def test_what_it_does_without_flags(command: Command):
    told = command.told()
    assert tuple(service.path for service in told.services) == DEFAULT_PATHS
    assert (told.place, told.listen) == (Address("", 8443), (Address("", 8080),))
    assert told.secret == Ref(SECRET, "volcano-system", "volcano-admission-secret")
    assert told.names[0] == "volcano-admission-service.volcano-system.svc"
    assert (told.files, told.url, told.grace_s) == (None, "", 5.0)
    rules = told.rules
    assert (rules.scheduler_names, rules.max_queue_depth) == (("volcano", "optsched"), 5)
    assert (rules.protects_root, rules.checks_allocated) == (True, False)
    assert "system:serviceaccount:volcano-system:volcano-controllers" in rules.trusted
    assert rules.zones is None or "Asia/Shanghai" in rules.zones


def test_flags_as_they_stand_in_the_manifests_of_volcano(
    command: Command, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    conf = tmp_path / "volcano-admission.conf"
    conf.write_text("#resourceGroups:\n")
    told = command.told(
        "--enabled-admission=/jobs/mutate,/jobs/validate,/podgroups/mutate,/pods/validate,"
        "/pods/mutate,/queues/mutate,/queues/validate",
        "--tls-cert-file=/c/tls.crt",
        "--tls-private-key-file=/c/tls.key",
        "--ca-cert-file=/c/ca.crt",
        f"--admission-conf={conf}",
        "--webhook-namespace=volcano-system",
        "--webhook-service-name=volcano-admission-service",
        "--enable-healthz=true",
        "--logtostderr",
        "--port=8443",
        "-v=4",
        "2>&1",
    )
    assert len(told.services) == 7
    assert told.files == CertificateFiles(Path("/c/tls.crt"), Path("/c/tls.key"), Path("/c/ca.crt"))
    assert told.listen == (Address("", 8080), Address("", 11251))
    assert "ignored arguments: --logtostderr, 2>&1" in caplog.text
    assert "omits /podgroups/validate, /jobflows/mutate" in caplog.text


def test_what_an_administrator_may_choose(command: Command):
    told = command.told(
        "--scheduler-name=mine",
        "--max-queue-depth=3",
        "--enable-root-queue-protection=false",
        "--enable-queue-allocated-pods-check=true",
        "--trusted-user=robot",
        "--queue-rbac",
        "--graceful-shutdown-time=30s",
        "--webhook-url=https://10.0.0.1:9443",
    )
    rules = told.rules
    assert (rules.scheduler_names, rules.trusted) == (("mine",), frozenset({"robot"}))
    assert (rules.max_queue_depth, rules.protects_root, rules.checks_allocated) == (3, False, True)
    assert rules.checks_use
    assert (told.grace_s, told.names[0]) == (30.0, "10.0.0.1")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--enabled-admission=/jobs/approve",), "unknown: /jobs/approve; known webhooks: "),
        (("--tls-cert-file=/a",), "--tls-cert-file and --tls-private-key-file must be"),
        (("--listen-address=x",), "'x' is not an address"),
        (("--graceful-shutdown-time=0s",), "must be longer than zero"),
    ],
)
def test_flags_that_are_wrong(command: Command, flags: tuple[str, ...], sentence: str):
    assert sentence in " ".join(command.complaint(*flags).split())
    assert command.settings == []


def test_gates_are_a_feature_as_in_volcano(command: Command, caplog: pytest.LogCaptureFixture):
    told = command.told("--feature-gates=SchedulingGatesQueueAdmission=true,Other=true")
    assert told.rules.gates_pods
    assert "/pods/mutate" in {service.path for service in told.services}
    assert "ignored feature gates: Other" in caplog.text
    assert not command.told("--feature-gates=Other=true").rules.gates_pods
    said = " ".join(command.complaint("--feature-gates=SchedulingGatesQueueAdmission=on").split())
    assert "SchedulingGatesQueueAdmission is 'on': write true or false" in said


def test_resource_groups_come_from_a_file(command: Command, tmp_path: Path):
    conf = tmp_path / "conf"
    conf.write_text("resourceGroups: [{resourceGroup: gpu, schedulerName: volcano}]")
    told = command.told(f"--admission-conf={conf}")
    assert told.config == conf
    assert "/pods/mutate" in {service.path for service in told.services}
    conf.write_text("resourceGroups: [{object: {key: label}}]")
    said = " ".join(command.complaint(f"--admission-conf={conf}").split())
    assert 'resourceGroups[0].object.key: "label" is not one of namespace, annotation' in said
    conf.write_text("[")
    assert "--admission-conf" in command.complaint(f"--admission-conf={conf}")


def test_a_cluster_that_is_not_there_is_one_sentence(command: Command):
    command.error = ConfigError("nothing says where the cluster is")
    assert "Error: nothing says where the cluster is" in command.complaint(code=1)


def test_metrics_are_served_over_tls_with_a_certificate(command: Command):
    flags = ("--metrics-tls-cert-file=/c", "--metrics-tls-private-key-file=/k", "--metrics-auth")
    files = CertificateFiles(Path("/c"), Path("/k"))
    assert command.told(*flags).metrics == SecureMetrics(
        Address("", 8444), files, needs_rights=True
    )
    assert command.told().metrics is None
