"""Puts the parts of a controller process together, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import LEASE
from optsched.kube.client.client import connect
from optsched.kube.client.errors import KubeError
from optsched.kube.controllers.manager import Manager, ManagerDependencies
from optsched.kube.controllers.metrics import ControllerMetrics
from optsched.kube.runtime.clock import SystemClock
from optsched.kube.runtime.events import EventRecorder
from optsched.kube.runtime.leader_election import AlwaysLeading, Elector, Leadership
from optsched.kube.runtime.lifecycle import (
    freeze_startup_objects,
    handle_signals,
    identity,
    wait_at_most,
)
from optsched.kube.runtime.outage import Outage
from optsched.kube.runtime.timing import Timing
from optsched.kube.serving.metrics_server import ServingAddresses, serve_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.controllers.controller import Controller
    from optsched.kube.client.client import Client
    from optsched.kube.client.interfaces import Ref
    from optsched.kube.runtime.events import Note
    from optsched.kube.runtime.leader_election import Election
    from optsched.kube.serving.http import Address
    from optsched.kube.serving.metrics_server import SecureMetrics

LAST_WORDS_S: Final = 2.0
"""How long events and the lease may take that are left when the process is told to stop."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of controllers is told.

    Attributes
    ----------
    election
        None where this process works without asking.
    listen
        Where health is served, and metrics unless `metrics` names another address.
    metrics
        Where metrics are served over TLS; None where they are served without.

    """

    controllers: Sequence[Controller]
    kubeconfig: str = ""
    election: Election | None = None
    listen: tuple[Address, ...] = ()
    metrics: SecureMetrics | None = None


async def run(settings: Settings) -> None:
    """Run controllers until SIGTERM or SIGINT.

    Raises ConfigError where no cluster is configured, and OSError for an address that is taken.
    """
    async with connect(settings.kubeconfig) as client:
        process = _Process(settings, client)
        shell = process.shell
        listening = ServingAddresses(settings.listen, settings.metrics)
        async with serve_process(listening, shell, process.metrics.exposition, client) as places:
            log.info("cluster %s; %s", client.server, places)
            freeze_startup_objects()
            await process.run()


class _Process:
    """All parts of one process."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self.metrics = ControllerMetrics()
        clock, timing = SystemClock(), Timing()
        self._outage = Outage()
        self._elector: Elector | None = None
        election = settings.election
        if election is not None:
            lock = (election.namespace, election.name)
            self._elector = Elector(client, lock, identity(), election.times, (clock, timing))
        leadership: Leadership = self._elector or AlwaysLeading()
        self._events = EventRecorder(client, clock, timing, self._is_due, self._is_there)
        reads_again = self._elector is not None
        parts = ManagerDependencies(
            client,
            client,
            self._events,
            self.metrics,
            leadership,
            clock,
            timing,
            reads_again=reads_again,
            outage=self._outage,
        )
        self.shell = Manager(settings.controllers, parts)

    async def run(self) -> None:
        """Run until told to stop."""
        stop = self.shell.stop
        async with asyncio.TaskGroup() as group:
            with handle_signals({signal.SIGTERM: stop, signal.SIGINT: stop}):
                tasks = [group.create_task(self._events.run())]
                if self._elector is not None:
                    tasks.append(group.create_task(self._run_election(self._elector)))
                await self.shell.run()
                await wait_at_most(LAST_WORDS_S, self._events.until_idle())
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._resign()

    def _is_due(self, note: Note) -> bool:
        """Whether the event of a note is to be written: only a leader tells, and only objects."""
        return self.shell.may_report(note)

    def _is_there(self, about: Ref, uid: str) -> bool:
        return self.shell.exists(about, uid)

    async def _run_election(self, elector: Elector) -> None:
        await elector.run(self._report_election, lambda: self._outage.record_success(LEASE))

    def _report_election(self, error: KubeError) -> None:
        level = logging.WARNING if self._outage.record_failure(LEASE, error) else logging.INFO
        log.log(level, "lease neither taken nor renewed: %s", error)

    async def _resign(self) -> None:
        if self._elector is None:
            return
        try:
            await wait_at_most(LAST_WORDS_S, self._elector.release())
        except KubeError as e:
            log.warning("lease not released: %s", e)
