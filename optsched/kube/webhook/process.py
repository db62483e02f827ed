"""Build, start and stop the components of the webhook process."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.admission.resource_groups import GroupsError, read_resource_groups
from optsched.admission.services import configuration_ref
from optsched.kube.client.client import connect
from optsched.kube.client.errors import KubeError
from optsched.kube.runtime.lifecycle import freeze_startup_objects, handle_signals
from optsched.kube.runtime.timing import SystemClock, Timing
from optsched.kube.serving.certificates import (
    SecretCredentials,
    ServedCertificate,
    trust_authority,
)
from optsched.kube.serving.metrics_server import serve_process
from optsched.kube.webhook.server import Reviewer, WebhookMetrics, application, serve_reviews
from optsched.kube.webhook.world import LiveWorld, TemplateValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optsched.admission.services import Service
    from optsched.admission.world import Settings as Rules
    from optsched.api.kinds import Ref
    from optsched.kube.client.client import Client
    from optsched.kube.serving.certificates import CertificateFiles
    from optsched.kube.serving.metrics_server import SecureMetrics
    from optsched.kube.serving.tls_listener import Address

log = logging.getLogger(__name__)

POLL_S: Final = 5.0
"""Seconds between two checks of certificates and webhook configurations."""

CONFIG_POLL_S: Final = 5.0
"""Seconds between two reads of the resource groups file."""

RETRY_S: Final = 1.0
ENDING_S: Final = 5.0
"""Seconds within which open requests must finish at shutdown."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a webhook process.

    Attributes
    ----------
    place
        The address that serves reviews.
    listen
        The addresses that serve health, and also metrics if `metrics` is None.
    metrics
        The settings of metrics over TLS, or None to serve metrics over HTTP at `listen`.
    files
        Credentials that another program renews, or None if the server signs its own certificate.
    secret, names
        The Secret of the self-signed credentials, and the server's DNS names and IP addresses.
    service_name
        Name of the webhook's Service, from which the names of the webhook configurations are
        derived.
    url
        The address that API servers call instead of the Service.
    config
        The resource groups file, reloaded after a change, or None if there is no such file.
    grace_s
        Seconds for which reviews are still answered after a signal, while clients switch replicas.
    """

    services: Sequence[Service]
    rules: Rules
    place: Address
    secret: Ref
    names: Sequence[str]
    service_name: str
    kubeconfig: str = ""
    listen: tuple[Address, ...] = ()
    metrics: SecureMetrics | None = None
    files: CertificateFiles | None = None
    url: str = ""
    config: Path | None = None
    grace_s: float = 5.0


async def run(settings: Settings) -> None:
    """Answer reviews until SIGTERM or SIGINT.

    Raises ConfigError if no cluster is configured, and OSError if an address is in use or a file
    cannot be read.
    """
    async with connect(settings.kubeconfig) as client:
        process = WebhookProcess(settings, client)
        async with serve_process(
            settings.listen, settings.metrics, process, process.metrics.exposition, client
        ) as places:
            log.info("cluster %s; %s", client.server, places)
            freeze_startup_objects()
            await process.run()


class WebhookProcess:
    """The components of a webhook process, and its health probes."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._timing = Timing()
        self.metrics = WebhookMetrics()
        clock = SystemClock()
        self._world = LiveWorld(
            clock, lambda kind: self.metrics.watch_failures.labels(kind.plural).inc()
        )
        self._config: ResourceGroupsFile | None = None
        if settings.config is not None:
            read = self.metrics.config_read
            self._config = ResourceGroupsFile(settings.config, settings.rules, read)

        self._reviewer = Reviewer(
            client,
            self._world,
            lambda: settings.rules if self._config is None else self._config.settings,
            self.metrics,
            clock,
            TemplateValidator(client, settings.secret.namespace, clock),
        )
        self._source: CertificateFiles | SecretCredentials = settings.files or SecretCredentials(
            client, settings.secret, settings.names, clock
        )
        self._certificate = ServedCertificate(
            "webhook", lambda ends: self.metrics.expiry.set(ends.timestamp())
        )
        self._is_trusted = False
        self._stopping = asyncio.Event()

    # --- Probes ----------------------------------------------------------------------------------

    def trouble(self) -> str:
        """See `Probes`."""
        return ""

    def unready(self) -> str:
        """See `Probes`."""
        if self._stopping.is_set():
            return "this process is stopping"
        unsynced = self._world.unsynced()
        if unsynced:
            return f"not listed yet: {', '.join(unsynced)}"
        return "" if self._is_trusted else "webhook configurations do not trust this server yet"

    # --- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        stop, services = self._stopping.set, self._settings.services
        files = self._settings.files
        if files is not None:
            await self._certificate.load_files(files)
        with handle_signals({signal.SIGTERM: stop, signal.SIGINT: stop}):
            async with asyncio.TaskGroup() as group:
                watches = self._world.watches(self._client, self._timing)
                tasks = [group.create_task(each) for each in watches]
                tasks.append(group.create_task(self._follow_config()))
                first_credentials = asyncio.ensure_future(self._first_credentials())
                stopping = asyncio.ensure_future(self._stopping.wait())
                await asyncio.wait(
                    (first_credentials, stopping), return_when=asyncio.FIRST_COMPLETED
                )
                stopping.cancel()
                if not first_credentials.done():
                    first_credentials.cancel()
                    await asyncio.wait((first_credentials,))
                else:
                    first_credentials.result()
                if not self._stopping.is_set():
                    app = application(services, self._reviewer)
                    tls = self._certificate.tls
                    async with serve_reviews(app, self._settings.place, tls, ENDING_S) as place:
                        paths = ", ".join(service.path for service in services)
                        log.info("reviews on %s:%d: %s", place.host, place.port, paths)
                        tasks.append(group.create_task(self._keep_trust()))
                        await self._stopping.wait()
                        await self._timing.sleep(self._settings.grace_s)
                for task in tasks:
                    task.cancel()

    async def _first_credentials(self) -> None:
        while self._certificate.credentials is None:
            try:
                self._certificate.present(await self._source.credentials())
            except KubeError as e:
                log.warning("no certificate yet: %s", e)
                await self._timing.sleep(RETRY_S)

    async def _follow_config(self) -> None:
        while self._config is not None:
            await self._timing.sleep(CONFIG_POLL_S)
            self._config.poll()

    async def _keep_trust(self) -> None:
        """Renew the certificate when due, and keep its CA in the webhook configurations."""
        while True:
            pause_s = POLL_S
            try:
                if not self._world.unsynced():
                    credentials = await self._source.credentials()
                    if credentials.authority:
                        # API servers must trust a new CA before a certificate that it signed is
                        # served.
                        settings = self._settings
                        refs = [
                            configuration_ref(service, settings.service_name)
                            for service in settings.services
                        ]
                        await trust_authority(
                            self._client, refs, credentials.authority, settings.url
                        )
                    if credentials != self._certificate.credentials:
                        self._certificate.present(credentials)
                    self._is_trusted = True
            except (KubeError, OSError, ValueError) as e:
                # The certificate in use is valid for weeks, so the renewal can be retried later.
                log.warning("certificate or webhook configurations not renewed: %s", e)
                pause_s = RETRY_S
            await self._timing.sleep(pause_s if self._is_trusted else RETRY_S)


class ResourceGroupsFile:
    """The settings of reviews, including the resource groups from a file.

    `settings` holds the review settings, with the resource groups from the last valid file content.
    `on_verdict` is called after each change of the file, with the mistake in the file, or with an
    empty string if the file is valid.
    """

    def __init__(self, path: Path, settings: Rules, on_verdict: Callable[[str], None]) -> None:
        """Read the resource groups file; raises OSError or ValueError if it cannot be used."""
        self._path = path
        self._on_verdict = on_verdict
        self._seen = path.read_text("utf-8")
        groups = read_resource_groups(self._seen)
        self.settings = replace(settings, resource_groups=groups)

    def poll(self) -> None:
        """Reload the resource groups file if it changed; each mistake is reported once."""
        try:
            content = self._path.read_text("utf-8")
        except (OSError, ValueError) as e:
            self._reject(f"\0{e}", str(e))
            return
        if content == self._seen:
            return
        try:
            groups = read_resource_groups(content)
        except GroupsError as e:
            self._reject(content, str(e))
            return
        self._seen = content
        self.settings = replace(self.settings, resource_groups=groups)
        log.info("%s reloaded: %d resource groups", self._path, len(groups))
        self._on_verdict("")

    def _reject(self, seen: str, problem: str) -> None:
        if seen == self._seen:
            return
        self._seen = seen
        log.error("%s not reloaded, the last valid content stays in use: %s", self._path, problem)
        self._on_verdict(problem)
