"""Parts common to all certificates."""

from __future__ import annotations

import ipaddress
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

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


def key_usage(*purposes: str) -> x509.KeyUsage:
    """The only purposes that a key may be used for."""
    return x509.KeyUsage(**{purpose: purpose in purposes for purpose in _PURPOSES})


def general_name(name: str) -> x509.GeneralName:
    """A DNS name or an IP address, whichever it is."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)
