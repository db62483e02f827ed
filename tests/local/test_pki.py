from __future__ import annotations

import ipaddress
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from optsched.formats.files.x509 import generate_key, key_pem
from optsched.local.plane import (
    SERVER_NAMES,
    Authority,
    Credential,
    ensure_pki,
    write_credential,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test", now=NOW)


def certificate(credential: Credential) -> x509.Certificate:
    return x509.load_pem_x509_certificate(credential.certificate)


def verify_server(authority: Authority, credential: Credential, name: str, when: datetime) -> None:
    subject: x509.GeneralName
    try:
        subject = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(when)
    verifier.build_server_verifier(subject).verify(certificate(credential), [])


@pytest.mark.parametrize("name", SERVER_NAMES)
def test_a_server_certificate_holds_for_each_of_its_names(authority: Authority, name: str) -> None:
    verify_server(authority, authority.issue_server(SERVER_NAMES, now=NOW), name, NOW)


def test_a_server_certificate_holds_for_nothing_else(authority: Authority) -> None:
    credential = authority.issue_server(SERVER_NAMES, now=NOW)
    stranger = Authority.create("stranger", now=NOW)
    with pytest.raises(VerificationError):
        verify_server(authority, credential, "example.org", NOW)
    with pytest.raises(VerificationError):
        verify_server(authority, credential, "localhost", NOW + timedelta(days=3651))
    with pytest.raises(VerificationError):
        verify_server(stranger, credential, "localhost", NOW)


def test_a_client_certificate_says_user_and_groups(authority: Authority) -> None:
    issued = certificate(authority.issue_client("jane", groups=["a", "b"], now=NOW))
    issued.verify_directly_issued_by(authority.certificate)
    names = issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = issued.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [name.value for name in names] == ["jane"]
    assert [group.value for group in groups] == ["a", "b"]


def test_each_certificate_is_for_one_purpose(authority: Authority) -> None:
    server = certificate(authority.issue_server(["localhost"], now=NOW))
    client = certificate(authority.issue_client("jane", now=NOW))
    purposes = {
        server: ExtendedKeyUsageOID.SERVER_AUTH,
        client: ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    for leaf, purpose in purposes.items():
        assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
            purpose
        ]
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
        assert usage.digital_signature
        assert not usage.key_cert_sign
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_only_the_authority_may_issue(authority: Authority) -> None:
    extensions = authority.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_keys_are_p256(authority: Authority) -> None:
    for pem in (
        authority.credential.key,
        authority.issue_client("jane", now=NOW).key,
        key_pem(generate_key()),
    ):
        key = load_pem_private_key(pem, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_the_key_of_service_accounts_is_of_the_form_that_api_servers_read(tmp_path: Path) -> None:
    ensure_pki(tmp_path / "pki", now=NOW)
    key = (tmp_path / "pki/service-account.key").read_bytes()
    assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")


def test_both_sides_accept_each_other(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = ensure_pki(tmp_path / "pki", now=now)
    write_credential(authority.issue_client("jane", now=now), tmp_path / "jane")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "pki/server.crt", tmp_path / "pki/server.key")
    server.load_verify_locations(tmp_path / "pki/ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(tmp_path / "pki/ca.crt"))
    client.load_cert_chain(tmp_path / "jane.crt", tmp_path / "jane.key")

    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as connection:
            peer = connection.getpeercert() or {}
            seen.append(str(peer["subject"]))
            connection.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ours, server_hostname="localhost") as connection:
        assert connection.recv(5) == b"hello"
    thread.join()
    assert "jane" in seen[0]


def test_files_are_private_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    made = ensure_pki(folder, now=NOW)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(files) == {"ca.crt", "ca.key", "server.crt", "server.key", "service-account.key"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    again = ensure_pki(folder, now=NOW + timedelta(days=1))
    assert again.certificate == made.certificate
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files


def test_half_a_pki_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "pki.new").mkdir()
    (tmp_path / "pki.new" / "ca.crt").write_text("interrupted")
    ensure_pki(tmp_path / "pki", now=NOW)
    assert not (tmp_path / "pki.new").exists()
