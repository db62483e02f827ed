"""Certificates of the control plane, and the kubeconfig files that hold them.

Keys are EC P-256. Everything is valid for ten years: the plane is thrown away long before.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from optsched.formats.files.x509 import general_name, key_usage, pem
from optsched.local.files import write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


LIFETIME = timedelta(days=3650)
CLOCK_SKEW = timedelta(minutes=5)

SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "::1",
    "10.0.0.1",
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, stem: Path) -> None:
        """Write `stem`.crt and `stem`.key, readable by the owner alone."""
        write_private(stem.with_suffix(".crt"), self.certificate)
        write_private(stem.with_suffix(".key"), self.key)

    @classmethod
    def read(cls, stem: Path) -> Credential:
        """What `write` wrote."""
        return cls(stem.with_suffix(".crt").read_bytes(), stem.with_suffix(".key").read_bytes())


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that can issue; `now` dates a certificate."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str, *, now: datetime) -> Authority:
        """A new self-signed authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _dated(subject, key.public_key(), now)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, credential: Credential) -> Authority:
        """The authority with this certificate and key."""
        key = serialization.load_pem_private_key(credential.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"expected an EC key for the authority, found {type(key).__name__}")
        return cls(x509.load_pem_x509_certificate(credential.certificate), key)

    @property
    def credential(self) -> Credential:
        """Certificate and key as PEM."""
        return Credential(pem(self.certificate), _key_pem(self.key))

    def issue_server(self, names: Sequence[str], *, now: datetime) -> Credential:
        """A certificate for a server reached by these DNS names and IP addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, alternatives, now)

    def issue_client(self, user: str, *, groups: Sequence[str] = (), now: datetime) -> Credential:
        """A certificate for a user; Kubernetes reads CN as the user and each O as a group."""
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        )
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, None, now)

    def _issue(
        self,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
        now: datetime,
    ) -> Credential:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _dated(subject, key.public_key(), now)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return Credential(pem(builder.sign(self.key, hashes.SHA256())), _key_pem(key))


def ensure_pki(folder: Path, *, now: datetime) -> Authority:
    """The plane's authority, with every further file that components read.

    Created once as a whole and then kept, so that issued kubeconfigs stay valid.
    """
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.create("optsched-local", now=now)
        authority.credential.write(draft / "ca")
        authority.issue_server(SERVER_NAMES, now=now).write(draft / "server")
        write_private(draft / "service-account.key", service_account_key())
        draft.rename(folder)
    return Authority.load(Credential.read(folder / "ca"))


def service_account_key() -> bytes:
    """A key, PEM, with which the API server signs and checks service account tokens."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def _dated(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


CLUSTER = "optsched-local"


def kubeconfig(
    server: str, authority: bytes, *, user: str, credential: Credential
) -> dict[str, Any]:
    """The configuration with which `user` reaches `server`; `authority` is PEM."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CLUSTER,
                "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(credential.certificate),
                    "client-key-data": _base64(credential.key),
                },
            }
        ],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }


def write_kubeconfig(path: Path, content: dict[str, Any]) -> None:
    """Write it as JSON, which every reader of YAML reads."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
