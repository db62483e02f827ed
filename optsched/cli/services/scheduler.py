"""`optsched scheduler`: the scheduler for a live cluster.

The command accepts the flags of Volcano's scheduler as Volcano's manifests write them, such as
`--leader-elect=false`. Flags that have no effect in optsched are ignored, and one warning lists
them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, Final

import click

from optsched.admission.names import is_qualified
from optsched.api.wellknown import DEFAULT_QUEUE, DEFAULT_SCHEDULER_NAME
from optsched.cli.base.options import DURATION, OBJECT_NAME, SCHEDULER_NAME, solver_option
from optsched.cli.base.path_arguments import ModelSource, OutputPath, check_path
from optsched.cli.base.session_context import collect_while_serving, plugin_source_of
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
)
from optsched.cluster.node_resources import Sharding, ShardMode
from optsched.formats.codec.pods.reader import SCHEDULER_NAMES, BarePodRules, DecodeOptions
from optsched.policy.load import PolicyWatch
from optsched.policy.policy import SolverKind

DEFAULT_MODEL: Final = "volcano-default"

SWITCHES: Final = frozenset({"leader-elect", "enable-healthz", METRICS_AUTH})
"""Names of Boolean flags, which Go accepts as `--flag=false`."""

IGNORED_SWITCHES: Final = KLOG_SWITCHES | {
    "cache-dumper",
    "csi-storage",
    "disable-default-scheduler-config",
    "enable-metrics",
    "enable-pprof",
    "priority-class",
}
IGNORED: Final = KLOG_FLAGS | {
    "ca-cert-file",
    "feature-gates",
    "gate-removal-worker-num",
    "ignored-provisioners",
    "leader-elect-resource-lock",
    "minimum-feasible-nodes",
    "minimum-percentage-nodes-to-find",
    "node-worker-threads",
    "percentage-nodes-to-find",
    "resource-sync-timeout",
    "resync-period",
    "tls-cert-file",
    "tls-private-key-file",
}
"""Names of Volcano's flags that take a value and have no effect in optsched."""

GRAMMAR: Final = Grammar(SWITCHES, IGNORED_SWITCHES, IGNORED)

log = logging.getLogger("optsched")


# --- flags ---------------------------------------------------------------------------------------


def _parse_label(text: str) -> tuple[str, str]:
    label, _, value = (part.strip() for part in text.partition(":"))
    is_value = not value or (is_qualified(value) and "/" not in value)
    if ":" not in text or not is_qualified(label) or not is_value:
        raise click.BadParameter(f"{text!r}: write LABEL:VALUE", param_hint="--node-selector")
    return label, value


# --- the command ---------------------------------------------------------------------------------


def state_folder() -> Path:
    """Return the default folder for snapshot dumps (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "optsched" / "dumps"


@service_command(GRAMMAR)
@click.option(
    "--scheduler-name",
    "names",
    type=SCHEDULER_NAME,
    multiple=True,
    default=SCHEDULER_NAMES,
    help="Schedule pods with this schedulerName; may be repeated.",
)
@click.option(
    "--config",
    "--scheduler-conf",
    "config",
    type=ModelSource(),
    default=DEFAULT_MODEL,
    help="A shipped model, or a file in Volcano's or optsched's format; reloaded when it changes.",
)
@solver_option
@click.option(
    "--schedule-period",
    type=DURATION,
    show_default="the policy's",
    help="Time between two sessions.",
)
@click.option(
    "--default-queue",
    type=OBJECT_NAME,
    default=DEFAULT_QUEUE,
    help="Queue of pods that name no queue.",
)
@click.option(
    "--loners",
    "bare_pods",
    type=click.Choice([each.value for each in BarePodRules]),
    default=BarePodRules.PLACE.value,
    help="Bare pods: place them one by one, or wait until controllers create their PodGroups.",
)
@click.option(
    "--tenant-priority-class",
    "lifting_classes",
    type=OBJECT_NAME,
    multiple=True,
    metavar="NAME",
    help="PriorityClass that may lift a PodGroup above its pods' priority; may be repeated.",
)
@click.option(
    "--device-scheduler",
    "device_schedulers",
    type=SCHEDULER_NAME,
    multiple=True,
    metavar="NAME",
    help="Another scheduler that allocates devices; read them from its pods' annotations.",
)
@click.option(
    "--node-selector", "selectors", multiple=True, help="LABEL:VALUE of the nodes to use."
)
@click.option(
    "--sharding-mode",
    "--scheduler-sharding-mode",
    "sharding_mode",
    type=click.Choice([mode.value for mode in ShardMode]),
    default=ShardMode.NONE.value,
    help="hard: use only the nodes of the NodeShard; soft: prefer these nodes.",
)
@click.option(
    "--sharding-name",
    "--scheduler-sharding-name",
    "sharding_name",
    type=OBJECT_NAME,
    default=DEFAULT_SCHEDULER_NAME,
    help="Name of this scheduler's NodeShard.",
)
@click.option(
    "--scheduled-events",
    type=click.Choice(["pods", "gangs"]),
    default="pods",
    help="Events about binds: one for each pod, or one for a PodGroup's pods bound together.",
)
@click.option(
    "--eviction-max-grace-period",
    "max_grace_ms",
    type=DURATION,
    default="10m",
    help="Longest grace period of an evicted pod.",
)
@click.option(
    "--guarantees-override-budgets",
    "overrides_budgets",
    is_flag=True,
    help="Reclaim up to a guarantee despite disruption budgets: delete pods, do not evict them.",
)
@listen_options(":8080")
@election_options(
    "With several replicas, only the elected leader schedules.",
    "the scheduler's name; if there are several, `volcano`",
)
@click.option(
    "--dump-dir",
    "--cache-dump-dir",
    "dump_dir",
    type=OutputPath(path_type=Path, file_okay=False),
    default=state_folder,
    show_default="~/.local/state/optsched/dumps",
    help="Folder for snapshots, written on SIGUSR2 and when a plan violates a rule.",
)
@click.option(
    "--plugins-dir",
    default="",
    help="Python files in this folder are plugins that the configuration may name.",
)
@logging_options
def scheduler(**given: Any) -> None:  # noqa: ANN401  click checks them
    """Run the scheduler for the pods that name it, next to kube-scheduler."""
    collect_while_serving()
    with service_errors():
        from optsched.kube.scheduler.process import Settings, run

        period_ms = given["schedule_period"]
        plugins_dir = given["plugins_dir"]
        if plugins_dir:
            check_path(plugins_dir)
        plugins = plugin_source_of(Path(plugins_dir) if plugins_dir else None)
        names = given["names"]
        lock_name = str(names[0]) if len(names) == 1 else DEFAULT_SCHEDULER_NAME
        settings = Settings(
            policy=PolicyWatch(given["config"], lambda path: path.read_text("utf-8"), plugins),
            kubeconfig=given["kubeconfig"],
            pods=DecodeOptions(
                tuple(given["names"]),
                given["default_queue"],
                Sharding(ShardMode(given["sharding_mode"]), given["sharding_name"]),
                BarePodRules(given["bare_pods"]),
                frozenset(given["lifting_classes"]),
                frozenset(given["device_schedulers"]),
                given["overrides_budgets"],
            ),
            solver=SolverKind(given["solver"]) if given["solver"] else None,
            period_s=None if period_ms is None else period_ms / 1000,
            election=election(given, lock_name),
            listen=tuple(addresses(given)),
            metrics=secure_metrics(given),
            dump_dir=given["dump_dir"],
            node_labels=tuple(
                _parse_label(p) for s in given["selectors"] for p in s.split(",") if p
            ),
            reports_gangs=given["scheduled_events"] == "gangs",
            # Seconds are rounded up, because a grace period of 0 would kill pods without SIGTERM.
            max_grace_s=-(-given["max_grace_ms"] // 1000),
        )
        asyncio.run(run(settings))
