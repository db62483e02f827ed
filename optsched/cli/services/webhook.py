"""`optsched webhook`: the admission webhook, which validates and defaults objects.

The command accepts the flags of Volcano's `vc-webhook-manager` as Volcano's manifests write them.
Flags that have no effect in optsched are ignored, and one warning lists them.
"""

from __future__ import annotations

import asyncio
import logging
import zoneinfo
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from optsched.cli.base.options import (
    ANNOTATION_KEY,
    DURATION,
    OBJECT_NAME,
    SCHEDULER_NAME,
    USER_NAME,
    WEBHOOK_ADDRESS,
    WholeNumber,
)
from optsched.cli.base.path_arguments import WatchedFile
from optsched.cli.services.service_options import (
    KLOG_FLAGS,
    KLOG_SWITCHES,
    METRICS_AUTH,
    Grammar,
    addresses,
    listen_options,
    logging_options,
    secure_metrics,
    service_command,
    service_errors,
    ssh_option,
)
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from optsched.admission.services import Service
    from optsched.admission.world import Settings as Rules
    from optsched.kube.serving.certificates import CertificateFiles

GATING: Final = "SchedulingGatesQueueAdmission"
"""The only Volcano feature gate that has an effect in optsched."""

UNGUARDED: Final = ("/queues/mutate", "/queues/validate", "/hypernodes/validate")
"""Paths of the webhooks that do not check whether a tenant may use a queue."""

CONTROLLERS: Final = ("volcano-controllers", "optsched-controllers")
"""Names of service accounts that create jobs and PodGroups on behalf of users."""

GRAMMAR: Final = Grammar(
    switches=frozenset(
        {
            "enable-healthz",
            METRICS_AUTH,
            "enable-queue-allocated-pods-check",
            "enable-root-queue-protection",
            "queue-rbac",
            "ssh",
        }
    ),
    ignored_switches=KLOG_SWITCHES,
    ignored=KLOG_FLAGS,
)

_FILE: Final = WatchedFile()


@service_command(GRAMMAR)
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=8443,
    help="Port for TLS connections from API servers.",
)
@click.option("--bind-address", default="", show_default="all", help="Address to listen on.")
@click.option(
    "--enabled-admission",
    "paths",
    default="",
    show_default="all",
    help="Comma-separated admission paths.",
)
@click.option(
    "--scheduler-name",
    "names",
    type=SCHEDULER_NAME,
    multiple=True,
    default=SCHEDULER_NAMES,
    help="Review pods with this schedulerName; may be repeated. "
    "Jobs that name no scheduler get the first schedulerName.",
)
@click.option(
    "--webhook-namespace",
    type=OBJECT_NAME,
    default="volcano-system",
    help="Namespace of the Service and the Secret.",
)
@click.option(
    "--webhook-service-name",
    "service_name",
    type=OBJECT_NAME,
    default="volcano-admission-service",
    help="Service of the webhook; names of webhook configurations contain its name.",
)
@click.option(
    "--webhook-url",
    "url",
    type=WEBHOOK_ADDRESS,
    default="",
    help="URL that API servers call instead of the webhook's Service.",
)
@click.option(
    "--secret-name",
    type=OBJECT_NAME,
    default="volcano-admission-secret",
    help="Secret with the generated certificates, which all replicas share.",
)
@click.option("--tls-cert-file", type=_FILE, help="Externally managed certificate.")
@click.option("--tls-private-key-file", type=_FILE, help="Private key of that certificate.")
@click.option("--ca-cert-file", type=_FILE, help="CA of that certificate.")
@click.option(
    "--admission-conf",
    "conf",
    type=_FILE,
    help="File with resource groups of pods; reloaded when it changes.",
)
@click.option(
    "--feature-gates",
    "features",
    default="",
    help=f"{GATING}=true: gate annotated pods until their queue has capacity.",
)
@click.option(
    "--max-queue-depth",
    type=WholeNumber(min=1),
    default=5,
    help="Maximum number of queue levels below the root.",
)
@click.option(
    "--enable-root-queue-protection/--no-enable-root-queue-protection",
    "protects_root",
    default=True,
    help="Reject changes of the root queue's capability, deserved and guarantee.",
)
@click.option(
    "--enable-queue-allocated-pods-check/--no-enable-queue-allocated-pods-check",
    "checks_allocated",
    default=False,
    help="Reject the deletion of queues whose pods hold resources.",
)
@click.option(
    "--trusted-user",
    "trusted",
    type=USER_NAME,
    multiple=True,
    show_default="the controllers of optsched and Volcano",
    help="User that may act on behalf of recorded submitters; may be repeated.",
)
@click.option(
    "--queue-rbac/--no-queue-rbac",
    "checks_use",
    default=False,
    help="Require the verb `use` on a queue, unless its access lists name the user.",
)
@ssh_option
@click.option(
    "--tenant-annotation",
    "tenant_annotations",
    type=ANNOTATION_KEY,
    multiple=True,
    metavar="KEY",
    help="Guarded annotation, such as volcano.sh/preemptable, that every user may write.",
)
@click.option(
    "--tenant-priority-class",
    "tenant_classes",
    type=OBJECT_NAME,
    multiple=True,
    metavar="NAME",
    show_default="all but system-*",
    help="PriorityClass that any user may give PodGroups, even above their pods' priority.",
)
@click.option(
    "--device-scheduler",
    "device_schedulers",
    type=SCHEDULER_NAME,
    multiple=True,
    metavar="NAME",
    help="Another scheduler that allocates devices; guard its pods' device annotations.",
)
@click.option(
    "--graceful-shutdown-time",
    "grace_ms",
    type=DURATION,
    default="5s",
    help="How long the webhook keeps responding after a stop signal.",
)
@listen_options(":8080")
@logging_options
def webhook(**given: Any) -> None:  # noqa: ANN401  click checks them
    """Run the admission webhook, which reviews objects before they are stored."""
    from optsched.api.kinds import SECRET, Ref
    from optsched.kube.serving.tls_listener import Address, is_host
    from optsched.kube.webhook.process import Settings, run

    namespace = given["webhook_namespace"]
    gates_pods = _read_gates(given["features"])
    services, rules = _select_services(given["paths"]), _read_rules(given, gates_pods=gates_pods)
    host = given["bind_address"]
    if not is_host(host):
        raise click.BadParameter(
            f"{host!r}: write an IP address or a DNS name", param_hint="--bind-address"
        )
    service = given["service_name"]
    dns_names = (f"{service}.{namespace}.svc", f"{service}.{namespace}", service)
    url_host = urlsplit(given["url"]).hostname
    settings = Settings(
        services=services,
        rules=rules,
        place=Address(host, given["port"]),
        secret=Ref(SECRET, namespace, given["secret_name"]),
        names=(url_host, *dns_names) if url_host else dns_names,
        service_name=service,
        kubeconfig=given["kubeconfig"],
        listen=tuple(addresses(given)),
        metrics=secure_metrics(given),
        files=_read_certificate_files(given),
        url=given["url"],
        config=_check_config(given["conf"]),
        grace_s=given["grace_ms"] / 1000,
    )
    with service_errors():
        asyncio.run(run(settings))


def _read_gates(features: str) -> bool:
    """Return whether the webhook adds scheduling gates to pods.

    `features` has the form `Name=true,Other=false`.
    """
    pairs = (feature.partition("=") for feature in features.split(",") if feature.strip())
    values = {name.strip(): value.strip().lower() for name, _, value in pairs}
    others = sorted(values.keys() - {GATING})
    if others:
        logging.getLogger("optsched").warning("ignored feature gates: %s", ", ".join(others))
    wanted = values.get(GATING, "false")
    if wanted not in ("true", "false"):
        raise click.BadParameter(
            f"{GATING} is {wanted!r}: write true or false", param_hint="--feature-gates"
        )
    return wanted == "true"


def _select_services(paths: str) -> Sequence[Service]:
    from optsched.admission.services import SERVICE_OF

    wanted = [path.strip() for path in paths.split(",") if path.strip()] or tuple(SERVICE_OF)
    unknown = [path for path in wanted if path not in SERVICE_OF]
    if unknown:
        known = ", ".join(SERVICE_OF)
        raise click.BadParameter(
            f"unknown: {', '.join(unknown)}; known webhooks: {known}",
            param_hint="--enabled-admission",
        )
    missing = [path for path in SERVICE_OF if path not in wanted and path not in UNGUARDED]
    if missing:
        logging.getLogger("optsched").warning(
            "users can bypass access control of queues: --enabled-admission omits %s",
            ", ".join(missing),
        )
    return tuple(SERVICE_OF[path] for path in dict.fromkeys(wanted))


def _read_rules(given: Mapping[str, Any], *, gates_pods: bool) -> Rules:
    from optsched.admission.world import JOB_PLUGINS
    from optsched.admission.world import Settings as Rules

    account = f"system:serviceaccount:{given['webhook_namespace']}:"
    return Rules(
        scheduler_names=tuple(given["names"]),
        trusted=frozenset(given["trusted"] or (f"{account}{name}" for name in CONTROLLERS)),
        zones=frozenset(zoneinfo.available_timezones()) or None,
        max_queue_depth=given["max_queue_depth"],
        protects_root=given["protects_root"],
        checks_allocated=given["checks_allocated"],
        gates_pods=gates_pods,
        job_plugins=JOB_PLUGINS if given["ssh"] else JOB_PLUGINS - {"ssh"},
        checks_use=given["checks_use"],
        tenant_annotations=frozenset(given["tenant_annotations"]),
        tenant_classes=frozenset(given["tenant_classes"]) or None,
        device_schedulers=frozenset(given["device_schedulers"]),
    )


def _check_config(path: Path | None) -> Path | None:
    """Return the path of the resource groups file; raise click.BadParameter if it is invalid."""
    from optsched.admission.resource_groups import GroupsError, read_resource_groups

    if path is None:
        return None
    try:
        read_resource_groups(path.read_text("utf-8"))
    except GroupsError as e:
        raise click.BadParameter(f"{path}: {e}", param_hint="--admission-conf") from e
    except (OSError, UnicodeDecodeError) as e:
        text = f"{path}: cannot be read: {why_unreadable(e)}"
        raise click.BadParameter(text, param_hint="--admission-conf") from e
    return path


def _read_certificate_files(given: Mapping[str, Any]) -> CertificateFiles | None:
    from optsched.kube.serving.certificates import CertificateFiles

    certificate, key = given["tls_cert_file"], given["tls_private_key_file"]
    if certificate is None and key is None:
        if given["ca_cert_file"] is not None:
            raise click.UsageError(
                "--ca-cert-file needs --tls-cert-file and --tls-private-key-file: "
                "without them the webhook generates its certificates"
            )
        return None
    if certificate is None or key is None:
        raise click.UsageError("--tls-cert-file and --tls-private-key-file must be given together")
    return CertificateFiles(certificate, key, given["ca_cert_file"])
