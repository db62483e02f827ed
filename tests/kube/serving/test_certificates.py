from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from optsched.kube.serving.certificates import Credentials, renew_credentials

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("hook.ns.svc", "127.0.0.1")


def first() -> Credentials:
    made, is_new = renew_credentials(None, NAMES, NOW)
    assert is_new
    return made


def authorities(credentials: Credentials) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(credentials.authority)


def test_a_new_certificate_is_signed_for_all_names_and_lives_for_ninety_days():
    made = first()
    certificate = x509.load_pem_x509_certificate(made.certificate)
    (authority,) = authorities(made)
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == list(NAMES)
    assert certificate.not_valid_after_utc == NOW + 90 * DAY
    assert certificate.not_valid_before_utc < NOW
    assert authority.not_valid_after_utc == NOW + 3650 * DAY


def test_what_is_good_is_kept():
    made = first()
    assert renew_credentials(made, NAMES, NOW + 59 * DAY) == (made, False)
    assert renew_credentials(made, NAMES[:1], NOW) == (made, False)


def test_a_certificate_that_ends_soon_is_replaced_by_the_same_authority():
    made = first()
    later, is_new = renew_credentials(made, NAMES, NOW + 61 * DAY)
    assert is_new
    assert later.certificate != made.certificate
    assert (later.authority, later.authority_key) == (made.authority, made.authority_key)


def test_another_name_needs_another_certificate():
    made = first()
    later, is_new = renew_credentials(made, (*NAMES, "other"), NOW)
    assert is_new
    assert later.authority == made.authority


def test_an_authority_that_ends_within_a_year_is_replaced_and_trusted_until_its_end():
    made = first()
    later, is_new = renew_credentials(made, NAMES, NOW + 3300 * DAY)
    assert is_new
    new, old = authorities(later)
    assert authorities(made) == [old]
    x509.load_pem_x509_certificate(later.certificate).verify_directly_issued_by(new)
    after_all, _ = renew_credentials(later, NAMES, NOW + 6900 * DAY)
    assert old not in authorities(after_all)


@pytest.mark.parametrize("field", ["certificate", "key", "authority", "authority_key"])
@pytest.mark.parametrize("value", [b"", b"-----BEGIN CERTIFICATE-----\nAA\n"])
def test_what_can_not_be_read_is_replaced(field: str, value: bytes):
    broken = replace(first(), **{field: value})
    made, is_new = renew_credentials(broken, NAMES, NOW)
    assert is_new
    assert renew_credentials(made, NAMES, NOW) == (made, False)


def test_parts_that_do_not_belong_together_are_replaced():
    one, other = first(), first()
    for mixed in (
        replace(one, key=other.key),
        replace(one, certificate=other.certificate, key=other.key),
        replace(one, authority_key=other.authority_key),
    ):
        assert renew_credentials(mixed, NAMES, NOW)[1]
