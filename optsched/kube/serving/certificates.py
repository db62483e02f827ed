"""Certificates that a server signs for itself, with an authority of its own.

Keys are EC P-256. An authority is valid for ten years, a server certificate for ninety days; both
are replaced well before they expire, and a replaced authority is trusted until it expires.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from optsched.formats.files.x509 import general_name, key_usage, pem

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTHORITY_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=90)
AUTHORITY_RENEWAL: Final = timedelta(days=365)
SERVER_RENEWAL: Final = timedelta(days=30)
CLOCK_SKEW: Final = timedelta(minutes=5)
AUTHORITY_NAME: Final = "optsched-admission"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The certificate of a server, and the authority that its clients should trust; all PEM.

    authority: the trusted certificates, the signing one first. authority_key: empty if the
    certificate is signed elsewhere.
    """

    certificate: bytes
    key: bytes
    authority: bytes = b""
    authority_key: bytes = b""


def renew_credentials(
    held: Credentials | None, names: Sequence[str], now: datetime
) -> tuple[Credentials, bool]:
    """Return credentials for a server, and whether they are new.

    names: DNS names and IP addresses. Held credentials are kept while they are readable, match,
    cover all names and do not expire soon.
    """
    authority = _authority(held, now) if held else None
    if held and authority and _is_good(held, authority, names, now):
        return held, False
    signer, trusted = authority or _new_authority(held, now)
    certificate, key = _issue(signer, names, now)
    made = Credentials(certificate, key, trusted, _key_pem(signer.key))
    return made, True


def expiry(certificate: bytes) -> datetime:
    """Return when a certificate expires; ValueError if it is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_authority(pem: bytes) -> bool:
    """Whether a text in PEM holds certificates, and nothing that can not be read."""
    try:
        return bool(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return False


def load_credentials(tls: ssl.SSLContext, credentials: Credentials) -> datetime:
    """Use credentials for new connections; returns when the certificate expires.

    ValueError or OSError if certificate and key can not be read or do not match; the context
    keeps its old ones.
    """
    ends = expiry(credentials.certificate)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for path, content in ((certificate, credentials.certificate), (key, credentials.key)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        # A pair that does not match would replace only half of the one in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        tls.load_cert_chain(certificate, key)
    return ends


def server_context() -> ssl.SSLContext:
    """Return a context for servers: TLS 1.2 or newer, no certificate yet."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    return tls


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _authority(held: Credentials, now: datetime) -> tuple[_Authority, bytes] | None:
    """Return the held authority and all trusted certificates; None if it is not usable."""
    try:
        certificates = x509.load_pem_x509_certificates(held.authority)
        key = serialization.load_pem_private_key(held.authority_key, password=None)
    except (ValueError, TypeError):
        return None
    first = certificates[0]
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _belong(first, key):
        return None
    if not _is_valid(first, now, AUTHORITY_RENEWAL):
        return None
    return _Authority(first, key), held.authority


def _new_authority(held: Credentials | None, now: datetime) -> tuple[_Authority, bytes]:
    """Return a new authority, and the trusted certificates: its own and unexpired old ones."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY_NAME)])
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    certificate = (
        _dated(subject, public, now, AUTHORITY_LIFE)
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    trusted = [certificate, *_still_trusted(held, now)]
    return _Authority(certificate, key), b"".join(pem(each) for each in trusted)


def _still_trusted(held: Credentials | None, now: datetime) -> list[x509.Certificate]:
    if held is None:
        return []
    try:
        certificates = x509.load_pem_x509_certificates(held.authority)
    except ValueError:
        return []
    return [each for each in certificates if _is_valid(each, now, timedelta())]


def _issue(authority: _Authority, names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
    """Return a certificate for a server, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    public = authority.key.public_key()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    certificate = (
        _dated(subject, key.public_key(), now, SERVER_LIFE)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([general_name(n) for n in names]), critical=False
        )
        .add_extension(issuer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return pem(certificate), _key_pem(key)


def _is_good(
    held: Credentials, authority: tuple[_Authority, bytes], names: Sequence[str], now: datetime
) -> bool:
    """Whether a server can keep its credentials."""
    try:
        certificate = x509.load_pem_x509_certificate(held.certificate)
        key = serialization.load_pem_private_key(held.key, password=None)
        certificate.verify_directly_issued_by(authority[0].certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        isinstance(key, ec.EllipticCurvePrivateKey)
        and _belong(certificate, key)
        and {general_name(name) for name in names} <= set(found.value)
        and _is_valid(certificate, now, SERVER_RENEWAL)
    )


def _belong(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return certificate.public_key() == key.public_key()


def _is_valid(certificate: x509.Certificate, now: datetime, ahead: timedelta) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - ahead


def _dated(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def from_epoch_ms(epoch_ms: int) -> datetime:
    """Return an epoch time as a datetime in UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
