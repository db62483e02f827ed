"""`optsched scheduler`: the scheduler of a live cluster.

Volcano's flags are understood as they stand in its manifests, `--leader-elect=false` and the like
included. Those that have no meaning here are accepted, with one warning for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from optsched import __version__
from optsched.api.wellknown import DEFAULT_QUEUE, DEFAULT_SCHEDULER_NAME
from optsched.cli.plugins import shelf_of
from optsched.domain.shards import Sharding, ShardMode
from optsched.formats.pods import DecodeOptions
from optsched.policy.policy import SolverKind
from optsched.policy.problem import PolicyError
from optsched.policy.reload import PolicyWatch
from optsched.units import DurationError
from optsched.units.duration import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.kube.live import Election, Settings
    from optsched.kube.server import Address

OWN_NAME: Final = "optsched"
DEFAULT_MODEL: Final = "volcano-default"
HEALTHZ: Final = ":11251"
DEBUG_VERBOSITY: Final = 4
"""From this number on klog's users see every step."""

SWITCHES: Final = frozenset({"leader-elect", "enable-healthz"})
"""Flags that are on or off; Go writes the latter as `--flag=false`."""

IGNORED_SWITCHES: Final = frozenset(
    {
        "alsologtostderr",
        "cache-dumper",
        "csi-storage",
        "disable-default-scheduler-config",
        "enable-metrics",
        "enable-pprof",
        "logtostderr",
        "priority-class",
    }
)
IGNORED: Final = frozenset(
    {
        "ca-cert-file",
        "feature-gates",
        "gate-removal-worker-num",
        "ignored-provisioners",
        "kube-api-burst",
        "kube-api-qps",
        "leader-elect-resource-lock",
        "log-flush-frequency",
        "master",
        "minimum-feasible-nodes",
        "minimum-percentage-nodes-to-find",
        "node-worker-threads",
        "percentage-nodes-to-find",
        "resource-sync-timeout",
        "resync-period",
        "stderrthreshold",
        "tls-cert-file",
        "tls-private-key-file",
        "vmodule",
    }
)
"""Volcano's flags without a meaning here; each takes a value."""

SHELL_LEFTOVER: Final = "2>&1"
"""Stands among the arguments in Volcano's manifests, where no shell is there to read it."""

log = logging.getLogger("optsched")


# --- flags ---------------------------------------------------------------------------------------


def translate(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The arguments as click reads them, and the names of those that are left out.

    `--flag=true` becomes `--flag`, `--flag=false` becomes `--no-flag`; `-v=3` becomes `-v 3`.
    """
    kept: list[str] = []
    ignored: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        is_long = argument.startswith("--")
        if argument == SHELL_LEFTOVER:
            ignored.append(argument)
        elif is_long and name in IGNORED_SWITCHES:
            ignored.append(f"--{name}")
        elif is_long and name in IGNORED:
            ignored.append(f"--{name}")
            if not equals:
                next(rest, None)
        elif is_long and name in SWITCHES and equals:
            kept.append(f"--{name}" if _is_true(name, value) else f"--no-{name}")
        elif argument.startswith("-v="):
            kept += ["-v", argument.removeprefix("-v=")]
        else:
            kept.append(argument)
    return kept, ignored


def _is_true(name: str, value: str) -> bool:
    if value.lower() in ("true", "t", "1"):
        return True
    if value.lower() in ("false", "f", "0"):
        return False
    raise click.BadParameter(f"{value!r} is neither true nor false", param_hint=f"--{name}")


class GoCommand(click.Command):
    """A command that understands flags as Go programs write them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        kept, ctx.meta["ignored"] = translate(args)
        return super().parse_args(ctx, kept)


class Duration(click.ParamType[int]):
    """A duration in Go's notation, such as 500ms, in milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See `click.ParamType`."""
        if isinstance(value, int):
            return value
        try:
            milliseconds = parse_duration_ms(value)
        except DurationError as e:
            self.fail(str(e), param, ctx)
        if milliseconds <= 0:
            self.fail(f"{value}: has to be longer than nothing", param, ctx)
        return milliseconds


def _label(text: str) -> tuple[str, str]:
    label, colon, value = text.partition(":")
    if not colon or not label:
        raise click.BadParameter(f"{text!r}: write LABEL:VALUE", param_hint="--node-selector")
    return label.strip(), value.strip()


# --- the command ---------------------------------------------------------------------------------


@click.command(cls=GoCommand, context_settings={"show_default": True})
@click.version_option(__version__, prog_name="optsched")
@click.option(
    "--kubeconfig",
    default="",
    show_default="KUBECONFIG, else the pod's service account",
    help="How to reach the cluster.",
)
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=(DEFAULT_SCHEDULER_NAME, OWN_NAME),
    help="Pods with this schedulerName are ours; may be given again.",
)
@click.option(
    "--config",
    "--scheduler-conf",
    "config",
    default=DEFAULT_MODEL,
    help="A model that comes along, or a file, in Volcano's format or ours, read when it changes.",
)
@click.option("--solver", type=click.Choice(["cpsat", "none"]), help="Instead of the policy's.")
@click.option(
    "--schedule-period",
    type=Duration(),
    show_default="the policy's",
    help="From one session to the next.",
)
@click.option("--default-queue", default=DEFAULT_QUEUE, help="For pods without any queue.")
@click.option(
    "--node-selector", "selectors", multiple=True, help="LABEL:VALUE; use such nodes only."
)
@click.option(
    "--sharding-mode",
    "--scheduler-sharding-mode",
    "sharding_mode",
    type=click.Choice([mode.value for mode in ShardMode]),
    default=ShardMode.NONE.value,
    help="hard: use the nodes of our NodeShard alone; soft: use them first.",
)
@click.option(
    "--sharding-name",
    "--scheduler-sharding-name",
    "sharding_name",
    default=DEFAULT_SCHEDULER_NAME,
    help="The name of our NodeShard.",
)
@click.option("--listen-address", default=":8080", help="/metrics, /healthz and /readyz.")
@click.option("--healthz-address", default="", help=f"The same again, such as {HEALTHZ}.")
@click.option("--enable-healthz/--no-enable-healthz", help=f"Listen on {HEALTHZ}, too.")
@click.option("--leader-elect/--no-leader-elect", default=True, help="Let one of several schedule.")
@click.option(
    "--lock-namespace",
    "--lock-object-namespace",
    "--leader-elect-resource-namespace",
    "lock_namespace",
    default="volcano-system",
    help="Where the lease is.",
)
@click.option(
    "--lock-name",
    "--leader-elect-resource-name",
    "lock_name",
    default="",
    show_default="the scheduler's name, `volcano` if it has several",
    help="The name of the lease.",
)
@click.option("--leader-elect-lease-duration", type=Duration(), default="15s")
@click.option("--leader-elect-renew-deadline", type=Duration(), default="10s")
@click.option("--leader-elect-retry-period", type=Duration(), default="2s")
@click.option(
    "--dump-dir",
    "--cache-dump-dir",
    "dump_dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="/tmp",  # noqa: S108  Volcano's default
    help="For snapshots: on SIGUSR2, and whenever a plan breaks a rule.",
)
@click.option(
    "--plugins-dir",
    default="",
    help="Python files in this folder are plugins that the configuration may name.",
)
@click.option("-v", "--v", "verbosity", default=0, help=f"{DEBUG_VERBOSITY} and more: every step.")
@click.pass_context
def scheduler(ctx: click.Context, /, **given: Any) -> None:  # noqa: ANN401  click decides
    """Schedule the pods of a cluster that ask for us, next to its own scheduler."""
    _set_up_logging(given["verbosity"])
    if ctx.meta["ignored"]:
        log.warning("without a meaning here: %s", ", ".join(ctx.meta["ignored"]))
    # Kubernetes' client takes half a second to load; other commands and --help do without.
    from optsched.kube.client import ConfigError
    from optsched.kube.live import run

    try:
        asyncio.run(run(_settings(given)))
    except (ConfigError, PolicyError, OSError) as e:
        raise click.ClickException(str(e)) from e


def _settings(given: Mapping[str, Any]) -> Settings:
    from optsched.kube.live import Settings

    period_ms = given["schedule_period"]
    shelf = shelf_of(Path(given["plugins_dir"]) if given["plugins_dir"] else None)
    return Settings(
        policy=PolicyWatch(given["config"], lambda path: path.read_text("utf-8"), shelf),
        kubeconfig=given["kubeconfig"],
        pods=DecodeOptions(
            tuple(given["names"]),
            given["default_queue"],
            Sharding(ShardMode(given["sharding_mode"]), given["sharding_name"]),
        ),
        solver=SolverKind(given["solver"]) if given["solver"] else None,
        period_s=None if period_ms is None else period_ms / 1000,
        election=_election(given) if given["leader_elect"] else None,
        listen=tuple(_addresses(given)),
        dump_dir=given["dump_dir"],
        node_labels=tuple(_label(p) for s in given["selectors"] for p in s.split(",") if p),
    )


def _election(given: Mapping[str, Any]) -> Election:
    from optsched.kube.lease import LeaseTimes
    from optsched.kube.live import Election

    flags = ("lease_duration", "renew_deadline", "retry_period")
    try:
        times = LeaseTimes(*(given[f"leader_elect_{flag}"] / 1000 for flag in flags))
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    names = given["names"]
    only = names[0] if len(names) == 1 else DEFAULT_SCHEDULER_NAME
    return Election(given["lock_namespace"], given["lock_name"] or only, times)


def _addresses(given: Mapping[str, Any]) -> Iterator[Address]:
    from optsched.kube.server import Address

    healthz = given["healthz_address"] or (HEALTHZ if given["enable_healthz"] else "")
    for text in (given["listen_address"], healthz):
        if text:
            try:
                yield Address.parse(text)
            except ValueError as e:
                raise click.UsageError(str(e)) from e


def _set_up_logging(verbosity: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO)


if __name__ == "__main__":
    scheduler()
