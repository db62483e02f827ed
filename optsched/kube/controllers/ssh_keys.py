"""Key pairs for SSH."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from optsched.controllers.job.plugins.base import KeyPair

_BITS: Final = 2048
_EXPONENT: Final = 65537


def generate_rsa_keys() -> KeyPair:
    """Return a new RSA key of 2048 bits, as `ssh-keygen -m PEM` writes it; takes some 50 ms."""
    key = rsa.generate_private_key(_EXPONENT, _BITS)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode() + "\n")
