"""Who signs for the webhook, and how API servers learn whom to trust.

Either the server signs for itself, with an authority kept in a Secret that all replicas share, or
somebody else does, such as cert-manager, and leaves files. API servers read whom to trust in the
webhook configurations; what is missing there is put there again.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from optsched.kube.certificates import Credentials, at, renewed
from optsched.kube.errors import AlreadyExists, Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optsched.kube.ports import Api, Raw, Ref
    from optsched.session.ports import Clock

_FIELDS: Final = {
    "certificate": "tls.crt",
    "key": "tls.key",
    "authority": "ca.crt",
    "authority_key": "ca.key",
}

log = logging.getLogger(__name__)


class Signer(Protocol):
    """Where credentials come from."""

    async def credentials(self) -> Credentials:
        """Those to use from now on; asked for again and again."""


@dataclass(frozen=True, slots=True)
class Files:
    """Credentials in files that somebody else renews. authority: None where nobody says."""

    certificate: Path
    key: Path
    authority: Path | None = None

    async def credentials(self) -> Credentials:
        """See `Signer`; OSError where a file can not be read."""
        trusted = self.authority.read_bytes() if self.authority else b""
        return Credentials(self.certificate.read_bytes(), self.key.read_bytes(), trusted)


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """Credentials in a Secret, renewed by whichever replica looks first.

    names: of the server; DNS names and IP addresses.
    """

    api: Api
    ref: Ref
    names: Sequence[str]
    clock: Clock

    async def credentials(self) -> Credentials:
        """See `Signer`; KubeError where the Secret can be neither read nor written."""
        while True:
            secret = await self._read()
            held = _credentials(secret) if secret else None
            made, is_new = renewed(held, self.names, at(self.clock.now_ms()))
            if not is_new:
                return made
            try:
                await self._write(secret, made)
            except (AlreadyExists, Conflict):
                # Another replica was faster; its certificate is as good as ours.
                continue
            log.info("%s: a new certificate for %s", self.ref, ", ".join(self.names))
            return made

    async def _read(self) -> Raw | None:
        try:
            return await self.api.read(self.ref)
        except NotFound:
            return None

    async def _write(self, secret: Raw | None, made: Credentials) -> None:
        data = {field: b64encode(getattr(made, name)).decode() for name, field in _FIELDS.items()}
        named: Raw = {"name": self.ref.name, "namespace": self.ref.namespace}
        if secret is None:
            kind = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            await self.api.create(self.ref, {**kind, "metadata": named, "data": data})
            return
        version = secret["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "data": data}
        await self.api.patch(self.ref, body)


def _credentials(secret: Raw) -> Credentials | None:
    data = secret.get("data") or {}
    try:
        return Credentials(**{name: b64decode(data[field]) for name, field in _FIELDS.items()})
    except (KeyError, ValueError):
        return None


async def announce(api: Api, refs: Sequence[Ref], authority: bytes, url: str = "") -> None:
    """Make API servers trust an authority, in webhook configurations that are there.

    url: where the server is reached, instead of the Service that the configurations name. Raises
    KubeError; a configuration that is not there is left out.
    """
    for ref in refs:
        try:
            await _announce_in(api, ref, b64encode(authority).decode(), url)
        except NotFound:
            log.debug("%s: is not there", ref)


async def _announce_in(api: Api, ref: Ref, bundle: str, url: str) -> None:
    while True:
        found = await api.read(ref)
        hooks = found.get("webhooks") or []
        wanted = [_trusting(hook, bundle, url) for hook in hooks]
        if wanted == hooks:
            return
        version = found["metadata"]["resourceVersion"]
        try:
            await api.patch(ref, {"metadata": {"resourceVersion": version}, "webhooks": wanted})
        except Conflict:
            continue
        log.info("%s: trusts the certificate of this server", ref)
        return


def _trusting(hook: Raw, bundle: str, url: str) -> Raw:
    config: Raw = dict(hook.get("clientConfig") or {})
    if url:
        service = config.pop("service", None) or {}
        path = service.get("path") or urlsplit(config.get("url", "")).path
        config["url"] = f"{url.rstrip('/')}{path}"
    return {**hook, "clientConfig": {**config, "caBundle": bundle}}
