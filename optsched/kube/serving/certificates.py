"""Create, read and renew server certificates, and write the trusted CA into webhook configurations.

A server may sign its own certificate with a CA in a Secret that all replicas share. Alternatively,
another program, such as cert-manager, provides certificate files. API servers read the trusted CA
from the webhook configurations. If a configuration loses the CA, the server writes it again.

Keys are EC P-256. A CA is valid for ten years, and a server certificate for ninety days. The CA and
the server certificate are replaced well before they expire. A replaced CA stays trusted until it
expires.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from optsched.api.kinds import Ref
from optsched.formats.files.x509 import Authority, Credential, general_name, pem
from optsched.kube.client.client import patch_current
from optsched.kube.client.errors import AlreadyExists, Conflict, NotFound
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.session.ports import Clock

SERVER_LIFE: Final = timedelta(days=90)
AUTHORITY_RENEWAL: Final = timedelta(days=365)
SERVER_RENEWAL: Final = timedelta(days=30)
AUTHORITY_NAME: Final = "optsched-admission"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server certificate and the CA that its clients should trust, all in PEM.

    `authority` holds the trusted certificates; the first one signed the server certificate.
    `authority_key` is empty if another program signs the certificate.
    """

    certificate: bytes
    key: bytes
    authority: bytes = b""
    authority_key: bytes = b""


def renew_credentials(
    held: Credentials | None, names: Sequence[str], now: datetime
) -> tuple[Credentials, bool]:
    """Return a server's credentials, and whether new credentials were created.

    `names` holds DNS names and IP addresses. The existing credentials are kept if they are
    readable, each certificate matches its key, the server certificate covers all names, and no
    certificate expires soon.
    """
    authority = _authority(held, now) if held else None
    if held and authority and _is_good(held, authority, names, now):
        return held, False
    if held and authority:
        trusted = held.authority
    else:
        # A replaced CA stays trusted until it expires.
        try:
            known = x509.load_pem_x509_certificates(held.authority) if held else []
        except ValueError:
            known = []
        valid = [each for each in known if _is_valid(each, now, timedelta())]
        authority = Authority.create(AUTHORITY_NAME, now=now)
        trusted = b"".join(map(pem, (authority.certificate, *valid)))
    issued = authority.issue_server(names, now=now, life=SERVER_LIFE)
    made = Credentials(issued.certificate, issued.key, trusted, authority.credential.key)
    return made, True


def load_credentials(tls: ssl.SSLContext, credentials: Credentials) -> datetime:
    """Use the credentials for new connections, and return the certificate's expiry time.

    Raises ValueError or OSError if the certificate and the key cannot be read or do not match. If
    an error is raised, the TLS context keeps its previous certificate and key.
    """
    ends = x509.load_pem_x509_certificate(credentials.certificate).not_valid_after_utc
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for path, content in ((certificate, credentials.certificate), (key, credentials.key)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        # If the certificate and the key do not match, loading them into the context would replace
        # the certificate and keep the old key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        tls.load_cert_chain(certificate, key)
    return ends


def server_context() -> ssl.SSLContext:
    """Return a server TLS context for TLS 1.2 or newer, without a certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    return tls


def _authority(held: Credentials, now: datetime) -> Authority | None:
    """Return the existing signing CA, or None if it is invalid or expires soon."""
    try:
        authority = Authority.load(Credential(held.authority, held.authority_key))
    except (ValueError, TypeError):
        return None
    matches = authority.certificate.public_key() == authority.key.public_key()
    is_usable = matches and _is_valid(authority.certificate, now, AUTHORITY_RENEWAL)
    return authority if is_usable else None


def _is_good(held: Credentials, authority: Authority, names: Sequence[str], now: datetime) -> bool:
    """Return whether a server can still use its existing credentials for these names."""
    try:
        certificate = x509.load_pem_x509_certificate(held.certificate)
        key = serialization.load_pem_private_key(held.key, password=None)
        certificate.verify_directly_issued_by(authority.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        isinstance(key, ec.EllipticCurvePrivateKey)
        and certificate.public_key() == key.public_key()
        and {general_name(name) for name in names} <= set(found.value)
        and _is_valid(certificate, now, SERVER_RENEWAL)
    )


def _is_valid(certificate: x509.Certificate, now: datetime, ahead: timedelta) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - ahead


log = logging.getLogger(__name__)

_AUTHORITY_KEY: Final = "ca.key"
_LEAF: Final = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "authority"}
_AUTHORITY: Final = {"ca.crt": "authority", _AUTHORITY_KEY: "authority_key"}
_ALL: Final = (*_LEAF, *_AUTHORITY)

MAX_CONFLICTS: Final = 5
"""Number of consecutive write conflicts after which the caller gets the error."""


class CertificateError(OSError):
    """Raised if files lack a certificate, key or CA; the message names the files."""


def _read_file(path: Path) -> bytes:
    """Return a file's content; an error names the file, even if reading fails after opening."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise CertificateError(f"{path}: {why_unreadable(e)}") from e


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Credentials in files that another program renews; `authority` is None without a CA file."""

    certificate: Path
    key: Path
    authority: Path | None = None

    async def credentials(self) -> Credentials:
        """Return the current credentials; the server calls this method periodically.

        Raises CertificateError if a file cannot be read or the CA file holds no certificate.
        Without a CA certificate, API servers would not trust the server.
        """
        trusted = _read_file(self.authority) if self.authority else b""
        certificate, key = _read_file(self.certificate), _read_file(self.key)
        if self.authority:
            try:
                has_certificate = bool(x509.load_pem_x509_certificates(trusted))
            except ValueError:
                has_certificate = False
            if not has_certificate:
                raise CertificateError(f"{self.authority}: is not a PEM certificate")
        return Credentials(certificate, key, trusted)


@dataclass(frozen=True, slots=True)
class SecretCredentials:
    """Credentials in two Secrets; the first replica that finds the renewal due performs it.

    One Secret holds the certificate and its key, the other the CA and its key
    (`authority_secret_ref`). A process that may read only the first Secret cannot sign
    certificates.

    `names` holds the server's DNS names and IP addresses.
    """

    api: Client
    ref: Ref
    names: Sequence[str]
    clock: Clock

    async def credentials(self) -> Credentials:
        """Return the current credentials, and renew the credentials if a renewal is due.

        The server calls this method periodically. Raises KubeError if a Secret cannot be read or
        written, or if other clients keep changing it.
        """
        conflicts = 0
        while True:
            leaf, authority = (
                await self._read(self.ref),
                await self._read(authority_secret_ref(self.ref)),
            )
            held: Credentials | None = None
            if leaf is not None or authority is not None:
                data, fields = {**_data(leaf), **_data(authority)}, {**_LEAF, **_AUTHORITY}
                held = Credentials(
                    **{name: _decode_base64(data.get(field)) for field, name in fields.items()}
                )
            now = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
            made, is_new = renew_credentials(held, self.names, now)
            # Earlier versions stored all fields in one Secret, which is now split into two Secrets.
            if not is_new and authority is not None and _AUTHORITY_KEY not in _data(leaf):
                return made
            try:
                await self._write(authority_secret_ref(self.ref), authority, made, _AUTHORITY)
                await self._write(self.ref, leaf, made, _LEAF)
            except (AlreadyExists, Conflict):
                # Another replica wrote the Secrets first, so its certificate is used.
                conflicts += 1
                if conflicts == MAX_CONFLICTS:
                    raise
                continue
            if is_new:
                log.info("%s: issued a certificate for %s", self.ref, ", ".join(self.names))
            return made

    async def _read(self, ref: Ref) -> Raw | None:
        try:
            return await self.api.read(ref)
        except NotFound:
            return None

    async def _write(
        self, ref: Ref, secret: Raw | None, made: Credentials, fields: Mapping[str, str]
    ) -> None:
        desired = {field: b64encode(getattr(made, name)).decode() for field, name in fields.items()}
        held = _data(secret)
        if desired == held:
            return
        if secret is None:
            named: Raw = {"name": ref.name, "namespace": ref.namespace}
            kind = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            await self.api.create(ref, {**kind, "metadata": named, "data": desired})
            return
        removed = {field: None for field in _ALL if field in held and field not in desired}
        version = secret["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "data": {**desired, **removed}}
        await self.api.patch(ref, body)


def authority_secret_ref(ref: Ref) -> Ref:
    """Return the Secret of the CA that signs the certificate in Secret `ref`."""
    return Ref(ref.kind, ref.namespace, f"{ref.name}-authority")


def _data(secret: Raw | None) -> dict[str, Any]:
    return (secret or {}).get("data") or {}


def _decode_base64(text: object) -> bytes:
    """Decode base64; return empty bytes if the field is missing or not base64."""
    try:
        return b64decode(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


async def trust_authority(
    api: Client, refs: Sequence[Ref], authority: bytes, url: str = ""
) -> None:
    """Write the trusted CA into webhook configurations.

    If `url` is not empty, the configurations call this server address instead of the Service.
    Webhook configurations that do not exist are skipped. Raises KubeError on other API server
    errors, or if other clients keep changing a configuration.
    """
    bundle = b64encode(authority).decode()

    def add_authority(found: Raw) -> Raw | None:
        hooks = found.get("webhooks") or []
        desired: list[Raw] = []
        for hook in hooks:
            config: Raw = dict(hook.get("clientConfig") or {})
            if url:
                service = config.pop("service", None) or {}
                path = service.get("path") or urlsplit(config.get("url", "")).path
                config["url"] = f"{url.rstrip('/')}{path}"
            desired.append({**hook, "clientConfig": {**config, "caBundle": bundle}})
        if desired == hooks:
            return None
        version = found["metadata"]["resourceVersion"]
        return {"metadata": {"resourceVersion": version}, "webhooks": desired}

    for ref in refs:
        try:
            if await patch_current(api, ref, add_authority, MAX_CONFLICTS):
                log.info("%s: trusts the certificate of this server", ref)
        except NotFound:
            log.debug("%s: does not exist", ref)


class ServedCertificate:
    """A server's TLS context and its credentials.

    New connections of the TLS context `tls` use the latest credentials. `credentials` holds the
    credentials in use, or None before `present` is first called.
    """

    def __init__(self, server: str, on_expiry: Callable[[datetime], None] = lambda _: None) -> None:
        """`server` is the server's name in log messages.

        `on_expiry` is called with the expiry time of each certificate that comes into use.
        """
        self.tls = server_context()
        self.credentials: Credentials | None = None
        self._server = server
        self._on_expiry = on_expiry

    def present(self, credentials: Credentials) -> None:
        """Use the credentials for new connections.

        Raises ValueError or OSError if the credentials are invalid; the previous credentials stay
        in use.
        """
        ends = load_credentials(self.tls, credentials)
        self.credentials = credentials
        log.info("%s: uses a certificate that expires %s", self._server, ends.isoformat())
        self._on_expiry(ends)

    async def load_files(self, files: CertificateFiles) -> None:
        """Load a certificate from files, unless it is already in use.

        Raises CertificateError if the files cannot be read or contain no certificate.
        """
        credentials = await files.credentials()
        if credentials == self.credentials:
            return
        try:
            self.present(credentials)
        except (ssl.SSLError, ValueError) as e:
            pair = f"{files.certificate} and {files.key}"
            raise CertificateError(f"{pair} are not a PEM certificate and its key") from e
