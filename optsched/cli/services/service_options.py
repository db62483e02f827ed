"""Options shared by all services: flags in Go's style, log output and exit codes."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from optsched import __version__
from optsched.admission.names import SUBDOMAIN_RULE, is_subdomain
from optsched.cli.base.command_errors import PlainCommand, describe_error
from optsched.cli.base.options import DURATION, OBJECT_NAME, Command, WholeNumber, add_options
from optsched.cli.base.path_arguments import BadInput, WatchedFile
from optsched.policy.diagnostic import PolicyError
from optsched.units.plaintext import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.serving.metrics_server import SecureMetrics
    from optsched.kube.serving.tls_listener import Address


@contextmanager
def service_errors() -> Iterator[None]:
    """Exit with 2 if a policy or certificate is invalid, 1 for cluster, address and file errors."""
    # The import of the Kubernetes client takes half a second, so other commands skip it.
    from optsched.kube.client.client import ConfigError
    from optsched.kube.serving.certificates import CertificateError

    try:
        yield
    except (PolicyError, CertificateError) as e:
        raise BadInput(describe_error(e)) from e
    except (ConfigError, OSError) as e:
        raise click.ClickException(describe_error(e)) from e


DEBUG_VERBOSITY: Final = 4
"""The lowest verbosity at which klog by convention prints debug messages."""

TEXT: Final = "text"
JSON: Final = "json"

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def logging_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add `-v` and `--log-format`, which set up the log; log a warning about ignored flags."""
    options = (
        click.option(
            "-v",
            "--v",
            "verbosity",
            type=WholeNumber(min=0),
            default=0,
            help=f"Verbosity; from {DEBUG_VERBOSITY} on, log every decision, review and write.",
        ),
        click.option(
            "--log-format",
            type=click.Choice([TEXT, JSON]),
            default=TEXT,
            show_default=True,
            help="Format of the log: plain lines, or one JSON object for each line.",
        ),
    )

    @wraps(run)
    def start(ctx: click.Context, /, verbosity: int, log_format: str, **given: object) -> None:
        set_up_logging(verbosity, log_format)
        if ignored := ctx.meta.get("ignored"):
            log.warning("ignored arguments: %s", ", ".join(ignored))
        run(**given)

    return add_options(*options)(click.pass_context(start))


class PlainFormatter(logging.Formatter):
    """A formatter that escapes control characters, so each log message is one line.

    Tracebacks keep their line breaks.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401  as in logging
        """See `logging.Formatter`."""
        return printable(super().formatException(ei), keep="\n")


def set_up_logging(verbosity: int, log_format: str = TEXT) -> None:
    """Log to stderr with timestamps in UTC."""
    log = logging.getLogger("optsched")
    handler = logging.StreamHandler(sys.stderr)
    lines = PlainFormatter("%(asctime)s %(levelname)s %(message)s", _TIME)
    formatter = _JsonLines() if log_format == JSON else lines
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.addHandler(handler)
    if logging.lastResort is not None:
        # Libraries log to the root logger; asyncio, for example, logs uncaught exceptions there.
        logging.lastResort.setFormatter(formatter)
    log.setLevel(logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO)


class _JsonLines(logging.Formatter):
    """A formatter that writes each log record as JSON: time, level, logger, message, error.

    `error` is the traceback, and only records with an exception have it.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, _TIME),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


HEALTHZ: Final = ":11251"
METRICS: Final = ":8444"
"""Default address for metrics over TLS."""

METRICS_AUTH: Final = "metrics-auth"
SHELL_LEFTOVER: Final = "2>&1"
"""A shell redirection that Volcano's manifests pass as an argument; no shell interprets it."""

KLOG_SWITCHES: Final = frozenset({"alsologtostderr", "logtostderr"})
KLOG_FLAGS: Final = frozenset(
    {
        "kube-api-burst",
        "kube-api-qps",
        "log-flush-frequency",
        "master",
        "stderrthreshold",
        "vmodule",
    }
)
"""Names of flags that klog and the Go client define, which Volcano's components accept."""

_FILE: Final = WatchedFile()

log = logging.getLogger("optsched")


@dataclass(frozen=True, slots=True)
class Grammar:
    """The Go-style flags that a service command accepts.

    Attributes
    ----------
    switches
        Names of Boolean flags, which Go accepts as `--flag=false`.
    ignored_switches, ignored
        Names of Boolean flags, and of flags with a value, that have no effect in optsched.
    """

    switches: frozenset[str]
    ignored_switches: frozenset[str]
    ignored: frozenset[str]


def translate(arguments: Iterable[str], grammar: Grammar) -> tuple[list[str], list[str]]:
    """Translate arguments to click's notation; return them and the names of ignored flags.

    `--flag=true` becomes `--flag`, `--flag=false` becomes `--no-flag`, and `-v=3` becomes `-v 3`.
    """
    kept: list[str] = []
    ignored: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        is_long = argument.startswith("--")
        if argument == SHELL_LEFTOVER:
            ignored.append(argument)
        elif is_long and name in grammar.ignored_switches:
            ignored.append(f"--{name}")
        elif is_long and name in grammar.ignored:
            ignored.append(f"--{name}")
            if not equals:
                next(rest, None)
        elif is_long and name in grammar.switches and equals:
            is_on = value.lower() in ("true", "t", "1")
            if not is_on and value.lower() not in ("false", "f", "0"):
                message = f"{value!r} is neither true nor false"
                raise click.BadParameter(message, param_hint=f"--{name}")
            kept.append(f"--{name}" if is_on else f"--no-{name}")
        elif argument.startswith("-v="):
            kept += ["-v", argument.removeprefix("-v=")]
        else:
            kept.append(argument)
    return kept, ignored


class GoCommand(PlainCommand):
    """A click command that accepts flags in Go's notation."""

    grammar: ClassVar[Grammar]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        kept, ctx.meta["ignored"] = translate(args, self.grammar)
        return super().parse_args(ctx, kept)


def service_command(grammar: Grammar) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a service command with Go-style flags and `--kubeconfig`."""
    kind: type[GoCommand] = type("GoCommand", (GoCommand,), {"grammar": grammar})
    command = click.command(cls=kind, context_settings={"show_default": True})
    version = click.version_option(__version__, prog_name="optsched")
    kubeconfig = click.option(
        "--kubeconfig",
        default="",
        show_default="KUBECONFIG, else the pod's service account",
        help="Path of the kubeconfig.",
    )
    return lambda run: command(version(kubeconfig(run)))


ssh_option: Final = click.option(
    "--ssh/--no-ssh",
    default=True,
    help="Allow the job plugin ssh, for which controllers read and write Secrets.",
)


def listen_options(default: str) -> Callable[[Command], Command]:
    """Add the flags for health and metrics, which `addresses` and `secure_metrics` interpret."""
    return add_options(
        click.option("--listen-address", default=default, help="Address of metrics and health."),
        click.option("--healthz-address", default="", help=f"Second address, such as {HEALTHZ}."),
        click.option("--enable-healthz/--no-enable-healthz", help=f"Also listen on {HEALTHZ}."),
        click.option(
            "--metrics-tls-cert-file",
            type=_FILE,
            help="Serve /metrics only over TLS, with this certificate.",
        ),
        click.option("--metrics-tls-private-key-file", type=_FILE, help="Its private key."),
        click.option(
            "--metrics-address", default="", show_default=METRICS, help="Address of this endpoint."
        ),
        click.option(
            "--metrics-auth/--no-metrics-auth",
            default=False,
            help="Require the token of a user who has permission to get /metrics.",
        ),
    )


def election_options(what: str, lock_name: str) -> Callable[[Command], Command]:
    """Add the flags for leader election, which `election` interprets.

    `what` is the help text of `--leader-elect`. `lock_name` is the default that the help of
    `--lock-name` shows.
    """
    return add_options(
        click.option("--leader-elect/--no-leader-elect", default=True, help=what),
        click.option(
            "--lock-namespace",
            "--lock-object-namespace",
            "--leader-elect-resource-namespace",
            "lock_namespace",
            type=OBJECT_NAME,
            default="volcano-system",
            help="Namespace of the lease.",
        ),
        click.option(
            "--lock-name",
            "--leader-elect-resource-name",
            "lock_name",
            default="",
            show_default=lock_name,
            help="Name of the lease.",
        ),
        click.option("--leader-elect-lease-duration", type=DURATION, default="15s"),
        click.option("--leader-elect-renew-deadline", type=DURATION, default="10s"),
        click.option("--leader-elect-retry-period", type=DURATION, default="2s"),
    )


def election(given: Mapping[str, Any], lock_name: str) -> Election | None:
    """Return the leader election settings, or None if leader election is disabled.

    `lock_name` is the default name of the Lease.
    """
    from optsched.kube.runtime.leader_election import Election, LeaseTimes

    if not given["leader_elect"]:
        return None
    name = given["lock_name"] or lock_name
    if not is_subdomain(name):
        raise click.BadParameter(
            f"{name!r} is not a lease name: {SUBDOMAIN_RULE}", param_hint="--lock-name"
        )
    flags = ("lease_duration", "renew_deadline", "retry_period")
    try:
        times = LeaseTimes(*(given[f"leader_elect_{flag}"] / 1000 for flag in flags))
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    return Election(given["lock_namespace"], name, times)


def addresses(given: Mapping[str, Any]) -> Iterator[Address]:
    """Yield the addresses on which health and metrics are served."""
    healthz = given["healthz_address"] or (HEALTHZ if given["enable_healthz"] else "")
    yield from (_parse_address(text) for text in (given["listen_address"], healthz) if text)


def _parse_address(text: str) -> Address:
    from optsched.kube.serving.tls_listener import Address

    try:
        return Address.parse(text)
    except ValueError as e:
        raise click.UsageError(str(e)) from e


def secure_metrics(given: Mapping[str, Any]) -> SecureMetrics | None:
    """Return the settings for metrics over TLS, or None if no certificate is given."""
    from optsched.kube.serving.certificates import CertificateFiles
    from optsched.kube.serving.metrics_server import SecureMetrics

    certificate, key = given["metrics_tls_cert_file"], given["metrics_tls_private_key_file"]
    if certificate is None and key is None:
        if given["metrics_auth"]:
            raise click.UsageError(
                "--metrics-auth needs --metrics-tls-cert-file and --metrics-tls-private-key-file: "
                "tokens are accepted only over TLS"
            )
        if given["metrics_address"]:
            raise click.UsageError(
                "--metrics-address needs --metrics-tls-cert-file and "
                "--metrics-tls-private-key-file: without them, --listen-address serves metrics"
            )
        return None
    if certificate is None or key is None:
        raise click.UsageError(
            "--metrics-tls-cert-file and --metrics-tls-private-key-file must be given together"
        )
    place = _parse_address(given["metrics_address"] or METRICS)
    return SecureMetrics(place, CertificateFiles(certificate, key), given["metrics_auth"])
