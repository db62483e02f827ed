"""Build, start and stop the components of the controller process."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from optsched.controllers.job.plugin_interface import KeyPair
from optsched.kube.client.client import connect
from optsched.kube.controllers.executor import ControllerMetrics
from optsched.kube.controllers.manager import Manager, ManagerDependencies
from optsched.kube.runtime.events import EventRecorder
from optsched.kube.runtime.leader_election import ProcessElection
from optsched.kube.runtime.lifecycle import (
    Outage,
    freeze_startup_objects,
    handle_signals,
    wait_at_most,
)
from optsched.kube.runtime.timing import SystemClock, Timing
from optsched.kube.serving.metrics_server import serve_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.controllers.controller import Controller
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.serving.metrics_server import SecureMetrics
    from optsched.kube.serving.tls_listener import Address

log = logging.getLogger(__name__)

SHUTDOWN_S: Final = 2.0
"""Timeout in seconds of each shutdown step: writing events and releasing the lease."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a controller process.

    Attributes
    ----------
    election
        The leader election, or None if this process is the only replica.
    listen
        The addresses that serve health, and also metrics if `metrics` is None.
    metrics
        The settings of metrics over TLS, or None to serve metrics over HTTP at `listen`.
    """

    controllers: Sequence[Controller]
    kubeconfig: str = ""
    election: Election | None = None
    listen: tuple[Address, ...] = ()
    metrics: SecureMetrics | None = None


async def run(settings: Settings) -> None:
    """Run controllers until SIGTERM or SIGINT.

    Raises ConfigError if no cluster is configured, and OSError if an address is in use.
    """
    async with connect(settings.kubeconfig) as client:
        process = ControllerProcess(settings, client)
        async with serve_process(
            settings.listen, settings.metrics, process.manager, process.metrics.exposition, client
        ) as places:
            log.info("cluster %s; %s", client.server, places)
            freeze_startup_objects()
            await process.run()


class ControllerProcess:
    """The components of a controller process: manager, event recorder and leader election."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self.metrics = ControllerMetrics()
        clock, timing, outage = SystemClock(), Timing(), Outage()
        self._election = ProcessElection(client, settings.election, clock, timing, outage)
        # The recorder is created before the manager, so the lambdas look up the manager when
        # called.
        self._events = EventRecorder(
            client,
            clock,
            timing,
            may_write=lambda note: self.manager.may_report(note),
            exists=lambda about, uid: self.manager.exists(about, uid),
        )
        dependencies = ManagerDependencies(
            client,
            self._events,
            self.metrics,
            self._election.leadership,
            clock,
            timing,
            reads_again=self._election.is_contested,
            outage=outage,
        )
        self.manager = Manager(settings.controllers, dependencies)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        stop = self.manager.stop
        async with asyncio.TaskGroup() as group:
            with handle_signals({signal.SIGTERM: stop, signal.SIGINT: stop}):
                services = (self._events.queue.run(), self._election.run())
                tasks = [group.create_task(service) for service in services]
                await self.manager.run()
                await wait_at_most(SHUTDOWN_S, self._events.queue.until_idle())
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._election.resign(SHUTDOWN_S)


_BITS: Final = 2048
_EXPONENT: Final = 65537


def generate_rsa_keys() -> KeyPair:
    """Generate a 2048-bit RSA key in the format of `ssh-keygen -m PEM`; takes about 50 ms."""
    key = rsa.generate_private_key(_EXPONENT, _BITS)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode() + "\n")
