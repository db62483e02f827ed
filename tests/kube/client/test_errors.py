from __future__ import annotations

import json

import pytest

from optsched.kube.client import errors
from optsched.kube.client.errors import MAX_MESSAGE, MAX_RETRY_AFTER_S, ApiError, parse_error


def status(code: int, reason: str, message: str = "no", **more: object) -> bytes:
    content = {"kind": "Status", "code": code, "reason": reason, "message": message, **more}
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.Rejected),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Gone", errors.Gone),
        (410, "Expired", errors.Expired),
        (422, "Invalid", errors.Rejected),
        (429, "TooManyRequests", errors.TooMany),
        (503, "ServiceUnavailable", errors.ServerFault),
        (418, "", ApiError),
    ],
)
def test_what_an_answer_means(code: int, reason: str, kind: type[ApiError]):
    assert type(parse_error(code, status(code, reason))) is kind


def test_the_code_of_the_answer_counts():
    assert parse_error(403, status(200, "Forbidden")).code == 403


def test_what_is_no_status_is_not_told():
    secret = b'{"kind": "Secret", "data": {"password": "aHVudGVyMg=="}}'
    for body in (secret, b"<html>hunter2", b"", b"[1]"):
        assert str(parse_error(502, body, "Bad Gateway")) == "502 Bad Gateway"


def test_messages_are_cut():
    error = parse_error(403, status(403, "Forbidden", "x" * 10_000))
    assert len(error.message) == MAX_MESSAGE
    assert str(error).startswith("403 Forbidden: xxx")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "a subdomain must consist of '-' or '.' (e.g. 'example.com', regex used for validation "
            r"is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), spec.a: no",
            "a subdomain must consist of '-' or '.' (e.g. 'example.com'), spec.a: no",
        ),
        ("must be a path (regex used for validation is '/.*')", "must be a path"),
    ],
)
def test_rules_are_told_in_words_without_their_regular_expression(said: str, kept: str):
    error = parse_error(422, status(422, "Invalid", said))
    assert error.message == kept


def test_how_long_to_wait():
    assert parse_error(429, b"", "", "7").retry_after_s == 7
    assert parse_error(429, status(429, "", details={"retryAfterSeconds": 3})).retry_after_s == 3
    assert parse_error(429, b"", "", "Wed, 21 Oct 2015 07:28:00 GMT").retry_after_s is None


@pytest.mark.parametrize(
    ("code", "reason", "label"),
    [
        (403, "Forbidden", "Forbidden"),
        (403, "policy 4711 of today", "403"),
        (502, "Bad Gateway", "502"),
        (403, "", "403"),
        (-7, "odd", "other"),
        (4_711, "odd", "other"),
    ],
)
def test_a_label_is_one_of_few(code: int, reason: str, label: str):
    assert parse_error(code, status(code, reason)).label == label


def test_reasons_are_cut():
    assert len(parse_error(403, status(403, "x" * 10_000)).reason) == MAX_MESSAGE


def test_no_server_asks_for_a_wait_without_end():
    assert parse_error(429, b"", "", "86400").retry_after_s == MAX_RETRY_AFTER_S
    for seconds in (86_400, 10**400):
        details = {"retryAfterSeconds": seconds}
        error = parse_error(429, status(429, "TooManyRequests", details=details))
        assert error.retry_after_s == MAX_RETRY_AFTER_S
