from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from optsched.admission.services import SERVICE_OF, configuration, configuration_ref
from optsched.api.kinds import SECRET, Ref
from optsched.kube.client.errors import AlreadyExists, Conflict, Unreachable
from optsched.kube.serving.certificates import (
    MAX_CONFLICTS,
    CertificateError,
    CertificateFiles,
    SecretCredentials,
    authority_secret_ref,
    renew_credentials,
    trust_authority,
)
from tests.kube.fakes import FakeApi, FakeClock

if TYPE_CHECKING:
    from pathlib import Path

WHERE = Ref(SECRET, "ns", "s")
HOOK = SERVICE_OF["/jobs/validate"]
REF = configuration_ref(HOOK)
TRUST = b64encode(b"ca").decode()
DAY_S = 86_400


def signer(api: FakeApi, clock: FakeClock | None = None) -> SecretCredentials:
    return SecretCredentials(api, WHERE, ("hook.ns.svc",), clock or FakeClock())


def test_replicas_share_one_certificate():
    async def play() -> None:
        api = FakeApi()
        made = await signer(api).credentials()
        assert await signer(api).credentials() == made
        assert [ref for ref, _ in api.writes] == [authority_secret_ref(WHERE), WHERE]
        assert set(api.objects[WHERE]["data"]) == {"tls.crt", "tls.key", "ca.crt"}
        assert set(api.objects[authority_secret_ref(WHERE)]["data"]) == {"ca.crt", "ca.key"}

    asyncio.run(play())


def test_the_key_of_the_authority_leaves_the_secret_of_the_certificate():
    """Earlier versions kept the key there. The authority stays, so that clients still trust it."""

    async def play() -> None:
        api = FakeApi()
        made = await signer(api).credentials()
        authority = api.objects.pop(authority_secret_ref(WHERE))
        api.objects[WHERE]["data"]["ca.key"] = authority["data"]["ca.key"]
        assert await signer(api).credentials() == made
        assert api.objects[authority_secret_ref(WHERE)]["data"] == authority["data"]
        assert "ca.key" not in api.objects[WHERE]["data"]
        num_writes = len(api.writes)
        assert await signer(api).credentials() == made
        assert len(api.writes) == num_writes

    asyncio.run(play())


def test_a_new_certificate_leaves_the_authority_as_it_is():
    async def play() -> None:
        api, clock = FakeApi(), FakeClock()
        await signer(api, clock).credentials()
        before = api.objects[authority_secret_ref(WHERE)]
        clock.seconds += 61 * DAY_S
        await signer(api, clock).credentials()
        assert api.objects[authority_secret_ref(WHERE)] == before

    asyncio.run(play())


def test_a_certificate_is_renewed_in_the_secret():
    async def play() -> None:
        api, clock = FakeApi(), FakeClock()
        made = await signer(api, clock).credentials()
        clock.seconds += 61 * DAY_S
        later = await signer(api, clock).credentials()
        assert later.certificate != made.certificate
        assert await signer(api, clock).credentials() == later

    asyncio.run(play())


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "!"}, {"tls.crt": "AA=="}])
def test_a_secret_that_holds_something_else_is_filled(data: Any):
    async def play() -> None:
        named = {"name": "s", "namespace": "ns"}
        api = FakeApi({"apiVersion": "v1", "kind": "Secret", "metadata": named, "data": data})
        made = await signer(api).credentials()
        assert await signer(api).credentials() == made

    asyncio.run(play())


def test_whoever_is_late_takes_what_is_there():
    async def play() -> None:
        api = FakeApi()
        one, other = await asyncio.gather(signer(api).credentials(), signer(api).credentials())
        assert one == other
        clock = FakeClock()
        clock.seconds += 61 * DAY_S
        api.refuse("patch", Conflict(409, "Conflict", "modified"))
        assert (await signer(api, clock).credentials()).certificate != one.certificate
        fresh = FakeApi()
        fresh.refuse("create", AlreadyExists(409, "AlreadyExists", "there"))
        await signer(fresh).credentials()
        assert len(fresh.writes) == 2

    asyncio.run(play())


def test_a_server_that_does_not_answer_is_told_on():
    api = FakeApi()
    api.refuse("read", Unreachable("no answer"))
    with pytest.raises(Unreachable):
        asyncio.run(signer(api).credentials())


def test_files_are_read_anew_each_time(tmp_path: Path):
    paths = [tmp_path / name for name in ("crt", "key", "ca")]
    trusted = renew_credentials(None, ("hook",), datetime.now(UTC))[0].authority
    for path, content in zip(paths, (b"crt", b"key", trusted), strict=True):
        path.write_bytes(content)
    files = CertificateFiles(*paths)
    assert asyncio.run(files.credentials()).authority == trusted
    paths[0].write_bytes(b"new")
    assert asyncio.run(files.credentials()).certificate == b"new"
    assert asyncio.run(CertificateFiles(*paths[:2]).credentials()).authority == b""


@pytest.mark.parametrize("content", [b"", b"ca", b"-----BEGIN CERTIFICATE-----\n"])
def test_an_authority_that_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    paths = [tmp_path / name for name in ("crt", "key", "ca")]
    for path in paths:
        path.write_bytes(content)
    with pytest.raises(CertificateError, match=r"/ca: is not a PEM certificate$"):
        asyncio.run(CertificateFiles(*paths).credentials())


def test_configurations_trust_and_lose_nothing():
    async def play() -> None:
        api = FakeApi(configuration(HOOK))
        absent = configuration_ref(SERVICE_OF["/queues/validate"])
        api.refuse("patch", Conflict(409, "Conflict", "modified"))
        await trust_authority(api, [absent, REF], b"ca")
        (found,) = api.objects[REF]["webhooks"]
        (wanted,) = configuration(HOOK)["webhooks"]
        wanted["clientConfig"]["caBundle"] = TRUST
        assert found == wanted
        num_writes = len(api.writes)
        await trust_authority(api, [REF], b"ca")
        assert len(api.writes) == num_writes

    asyncio.run(play())


def test_a_writer_that_always_loses_gives_up():
    """The server retries after a delay."""
    conflict = Conflict(409, "Conflict", "modified")

    async def play() -> None:
        api = FakeApi(configuration(HOOK))
        api.refuse("patch", *[conflict] * 1000)
        with pytest.raises(Conflict):
            await trust_authority(api, [REF], b"ca")
        assert len(api.calls) <= 2 * MAX_CONFLICTS
        fresh = FakeApi()
        fresh.refuse("create", *[conflict] * 1000)
        with pytest.raises(Conflict):
            await signer(fresh).credentials()
        assert len(fresh.calls) <= 3 * MAX_CONFLICTS

    asyncio.run(play())


def test_a_server_without_a_service_is_asked_where_it_is():
    async def play() -> None:
        api = FakeApi(configuration(HOOK))
        for url in ("https://10.0.0.1:1", "https://10.0.0.1:2/"):
            await trust_authority(api, [REF], b"ca", url)
        (found,) = api.objects[REF]["webhooks"]
        assert found["clientConfig"] == {
            "url": "https://10.0.0.1:2/jobs/validate",
            "caBundle": TRUST,
        }

    asyncio.run(play())
