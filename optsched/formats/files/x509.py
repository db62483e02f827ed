"""Certificate authorities and the certificates that they issue; all keys are EC P-256."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFETIME: Final = timedelta(days=3650)
CLOCK_SKEW: Final = timedelta(minutes=5)

_PURPOSES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority; the methods take the time of issue as `now`."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str, *, now: datetime) -> Authority:
        """Create a self-signed authority that is valid for ten years."""
        key = generate_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            _dated(subject, key.public_key(), now, LIFETIME)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, credential: Credential) -> Authority:
        """Load an authority from a credential; raise TypeError or ValueError if it is invalid."""
        key = serialization.load_pem_private_key(credential.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"expected an EC key for the authority, found {type(key).__name__}")
        return cls(x509.load_pem_x509_certificates(credential.certificate)[0], key)

    @property
    def credential(self) -> Credential:
        """The certificate and private key of the authority, in PEM."""
        return Credential(pem(self.certificate), key_pem(self.key))

    def issue_server(
        self, names: Sequence[str], *, now: datetime, life: timedelta = LIFETIME
    ) -> Credential:
        """Issue a certificate for a server with the given DNS names and IP addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, alternatives, now, life)

    def issue_client(self, user: str, *, groups: Sequence[str] = (), now: datetime) -> Credential:
        """Issue a certificate for a user; CN is the user name, and each O is a group."""
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        )
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, None, now, LIFETIME)

    def _issue(
        self,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
        now: datetime,
        life: timedelta,
    ) -> Credential:
        key = generate_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _dated(subject, key.public_key(), now, life)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return Credential(pem(builder.sign(self.key, hashes.SHA256())), key_pem(key))


def generate_key() -> ec.EllipticCurvePrivateKey:
    """Generate an EC P-256 private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    """Format a private key as PEM without a password."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _dated(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _key_usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{purpose: purpose in purposes for purpose in _PURPOSES})


def general_name(name: str) -> x509.GeneralName:
    """Convert an IP address or a DNS name to an alternative name for a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(certificate: x509.Certificate) -> bytes:
    """Format a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)
