"""`optsched controllers`: the controllers for queues, jobs, JobFlows and PodGroups.

The command accepts the flags of Volcano's `vc-controller-manager` as Volcano's manifests write
them. Flags that have no effect in optsched are ignored, and one warning lists them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from optsched.admission.names import is_subdomain
from optsched.api.wellknown import DEFAULT_QUEUE, VOLCANO_PREFIX
from optsched.cli.base.options import OBJECT_NAME, SCHEDULER_NAME
from optsched.cli.services.service_options import (
    KLOG_FLAGS,
    KLOG_SWITCHES,
    METRICS_AUTH,
    Grammar,
    addresses,
    election,
    election_options,
    listen_options,
    logging_options,
    secure_metrics,
    service_command,
    service_errors,
    ssh_option,
)
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES

CONFIG: Final = ("volcano-system", "volcano-controller-configmap")
"""The ConfigMap in which Volcano's chart stores the arguments for its controllers."""

LOCK_NAME: Final = "vc-controller-manager"

GRAMMAR: Final = Grammar(
    switches=frozenset(
        {
            "leader-elect",
            "enable-healthz",
            METRICS_AUTH,
            "evictions-are-retries",
            "inherit-owner-annotations",
            "ssh",
        }
    ),
    ignored_switches=KLOG_SWITCHES | {"enable-metrics", "enable-node-event-trigger"},
    ignored=KLOG_FLAGS
    | {
        "ca-cert-file",
        "feature-gates",
        "leader-elect-resource-lock",
        "max-requeue-num",
        "resync-period",
        "scheduler-configs",
        "shard-sync-period",
        "sharding-configmap",
        "sharding-configmap-namespace",
        "tls-cert-file",
        "tls-private-key-file",
        "worker-threads",
        "worker-threads-for-cronjob",
        "worker-threads-for-gc",
        "worker-threads-for-podgroup",
        "worker-threads-for-queue",
    },
)


@service_command(GRAMMAR)
@click.option(
    "--controllers",
    "words",
    default="*",
    help="Comma-separated names: * for all controllers, -NAME to exclude one.",
)
@click.option(
    "--scheduler-name",
    "names",
    type=SCHEDULER_NAME,
    multiple=True,
    default=SCHEDULER_NAMES,
    help="Create PodGroups for pods with this schedulerName; may be repeated.",
)
@click.option(
    "--default-queue",
    type=OBJECT_NAME,
    default=DEFAULT_QUEUE,
    help="Queue of pods that name no queue.",
)
@click.option(
    "--config-map",
    default="/".join(CONFIG),
    help="NAMESPACE/NAME of the ConfigMap that configures the discovery of HyperNodes.",
)
@click.option(
    "--inherit-owner-annotations/--no-inherit-owner-annotations",
    default=True,
    help="Copy annotations and minMember to PodGroups from the owners of their pods.",
)
@click.option(
    "--evictions-are-retries/--no-evictions-are-retries",
    default=False,
    help="Count job restarts after evictions towards maxRetry, as Volcano does.",
)
@ssh_option
@listen_options(":8081")
@election_options(
    "With several replicas, run the controllers only in the elected leader.", LOCK_NAME
)
@logging_options
def controllers(**given: Any) -> None:  # noqa: ANN401  click checks them
    """Run the controllers of queues, jobs and PodGroups."""
    from optsched.controllers import podgroup
    from optsched.controllers.job import reconcile as job
    from optsched.controllers.registry import Options, all_controllers, chosen
    from optsched.kube.controllers.process import Settings, generate_rsa_keys, run

    text = given["config_map"]
    namespace, slash, name = text.partition("/")
    if not (is_subdomain(namespace) and slash and is_subdomain(name)):
        raise click.BadParameter(f"{text!r}: write NAMESPACE/NAME", param_hint="--config-map")
    new_keys = generate_rsa_keys if given["ssh"] else None
    inherits = (VOLCANO_PREFIX,) if given["inherit_owner_annotations"] else ()
    options = Options(
        job.Options(new_keys, given["evictions_are_retries"]),
        podgroup.Options(tuple(given["names"]), given["default_queue"], inherits),
        (namespace, name),
    )
    try:
        wanted = chosen(all_controllers(options), given["words"].split(","))
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--controllers") from e
    settings = Settings(
        controllers=wanted,
        kubeconfig=given["kubeconfig"],
        election=election(given, LOCK_NAME),
        listen=tuple(addresses(given)),
        metrics=secure_metrics(given),
    )
    with service_errors():
        asyncio.run(run(settings))
