"""Certificates that a server signs with its own CA.

Keys are EC P-256. A CA is valid for ten years, and a server certificate for ninety days. The CA and
the server certificate are replaced well before they expire. A replaced CA stays trusted until it
expires.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from optsched.formats.files.x509 import Authority, Credential, general_name, pem

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Return credentials for a server, and whether they are new.

    `names` holds DNS names and IP addresses. Existing credentials are kept if they are readable,
    the keys match, all names are covered, and no expiry is near.
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


def is_authority(pem: bytes) -> bool:
    """Return whether the PEM text contains at least one certificate, and all are readable."""
    try:
        return bool(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return False


def load_credentials(tls: ssl.SSLContext, credentials: Credentials) -> datetime:
    """Use the credentials for new connections, and return the certificate's expiry time.

    Raises ValueError or OSError if the certificate and the key cannot be read or do not match. The
    context then keeps its previous certificate and key.
    """
    ends = x509.load_pem_x509_certificate(credentials.certificate).not_valid_after_utc
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for path, content in ((certificate, credentials.certificate), (key, credentials.key)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        # If a key that does not match were loaded directly into the context, only the certificate
        # in use would be replaced.
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
    """Return whether a server's existing credentials can still be used for these names."""
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
