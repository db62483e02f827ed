"""Metrics over TLS are for authorized readers, while health is open to every client."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

from optsched.api.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.kube.client.errors import Unreachable
from optsched.kube.runtime.timing import Timing
from optsched.kube.serving.certificates import CertificateFiles, Credentials, renew_credentials
from optsched.kube.serving.metrics_server import (
    ALLOWED_S,
    MAX_CACHED,
    MAX_REVIEWS,
    REFUSED_S,
    MetricsAccess,
    SecureMetrics,
    serve_process,
)
from optsched.kube.serving.tls_listener import Address
from optsched.local.assets import shipped
from tests.kube.fakes import FakeClock
from tests.kube.serving.test_http import LOOPBACK, Patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from optsched.api.kinds import Ref
    from optsched.kube.client.listing import Raw

pytestmark = pytest.mark.asyncio

HOST: Final = "127.0.0.1"
GROUPS: Final = ["system:serviceaccounts", "system:authenticated"]
USERS: Final = {"good": "prometheus", "other": "stranger"}


class Reviews:
    """An API server that knows two tokens; `prometheus` may read /metrics."""

    def __init__(self) -> None:
        self.specs: list[tuple[str, Raw]] = []
        self.error: Exception | None = None
        self.is_silent = False

    async def create(self, ref: Ref, body: Raw) -> Raw:
        self.specs.append((ref.kind.kind, body["spec"]))
        assert body["apiVersion"] == ref.kind.api_version
        if self.is_silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if ref.kind == TOKEN_REVIEW:
            return {"status": self._who(body["spec"]["token"])}
        assert ref.kind == SUBJECT_ACCESS_REVIEW
        return {"status": {"allowed": body["spec"]["user"] == "prometheus"}}

    def _who(self, token: str) -> Raw:
        if token not in USERS:
            return {"authenticated": False, "error": "invalid bearer token"}
        extra = {"pod": ["p-0"]}
        user = {"username": USERS[token], "uid": "u", "groups": GROUPS, "extra": extra}
        return {"authenticated": True, "user": user}


class Reader:
    """A client of one process."""

    def __init__(
        self, http: aiohttp.ClientSession, trust: ssl.SSLContext, health: int, metrics: int
    ) -> None:
        self._http = http
        self._trust = trust
        self._health = f"http://{HOST}:{health}"
        self._metrics = f"https://{HOST}:{metrics}"

    async def health(self, path: str) -> tuple[int, str]:
        async with self._http.get(self._health + path) as answer:
            return answer.status, await answer.text()

    async def metrics(self, token: str | None = None, path: str = "/metrics") -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self._http.get(self._metrics + path, headers=headers, ssl=self._trust) as answer:
            assert ("WWW-Authenticate" in answer.headers) == (answer.status == 401)
            return answer.status, await answer.text()


def write(folder: Path, credentials: Credentials) -> CertificateFiles:
    files = CertificateFiles(folder / "tls.crt", folder / "tls.key")
    files.certificate.write_bytes(credentials.certificate)
    files.key.write_bytes(credentials.key)
    return files


def made(held: Credentials | None = None, *names: str) -> Credentials:
    return renew_credentials(held, (HOST, *names), datetime.now(UTC))[0]


@asynccontextmanager
async def reading(
    folder: Path,
    api: Reviews,
    *,
    needs_rights: bool = True,
    sleep: Callable[[float], Any] = asyncio.sleep,
) -> AsyncIterator[tuple[Reader, Credentials]]:
    credentials = made()
    files = write(folder, credentials)
    metrics = SecureMetrics(Address(HOST, 0), files, needs_rights)
    serving = serve_process(
        (LOOPBACK,), metrics, Patient(), lambda _: b"up 1\n", api, Timing(sleep)
    )
    async with serving as places, aiohttp.ClientSession() as http:
        assert places.metrics is not None
        assert str(places).startswith(f"health on {HOST}:{places.health[0].port}; metrics over TLS")
        trust = ssl.create_default_context(cadata=credentials.authority.decode())
        yield Reader(http, trust, places.health[0].port, places.metrics.port), credentials


async def test_with_a_certificate_metrics_come_over_tls_alone(tmp_path: Path) -> None:
    api = Reviews()
    async with reading(tmp_path, api, needs_rights=False) as (reader, _):
        assert await reader.metrics() == (200, "up 1\n")
        assert await reader.metrics(path="/healthz") == (404, "404: Not Found")
        assert await reader.health("/healthz") == (200, "ok")
        assert await reader.health("/readyz") == (200, "ok")
        assert (await reader.health("/metrics"))[0] == 404
    assert not api.specs


async def test_metrics_are_for_readers_with_the_right_and_health_for_all(tmp_path: Path) -> None:
    api = Reviews()
    async with reading(tmp_path, api) as (reader, _):
        assert await reader.metrics("good") == (200, "up 1\n")
        denied = "user stranger may not get the nonResourceURL /metrics"
        assert await reader.metrics("other") == (403, denied)
        assert (await reader.metrics("forged"))[0] == 401
        assert (await reader.metrics())[0] == 401
        assert (await reader.metrics(""))[0] == 401
        assert await reader.health("/healthz") == (200, "ok")
    attributes = {"path": "/metrics", "verb": "get"}
    known = {"uid": "u", "groups": GROUPS, "extra": {"pod": ["p-0"]}}
    assert api.specs[:2] == [
        ("TokenReview", {"token": "good"}),
        (
            "SubjectAccessReview",
            {"user": "prometheus", **known, "nonResourceAttributes": attributes},
        ),
    ]


async def test_a_silent_api_server_holds_up_readers_of_metrics_and_not_health(
    tmp_path: Path,
) -> None:
    api = Reviews()
    api.is_silent = True
    async with reading(tmp_path, api) as (reader, _):
        waiting = [asyncio.create_task(reader.metrics(f"t{i}")) for i in range(MAX_REVIEWS)]
        while len(api.specs) < MAX_REVIEWS:
            await asyncio.sleep(0.001)
        assert await reader.health("/healthz") == (200, "ok")
        assert await reader.health("/readyz") == (200, "ok")
        assert await reader.metrics("one-more") == (503, "too many tokens are under review")
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_new_certificate_is_shown_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns: asyncio.Queue[None] = asyncio.Queue()
    looked = asyncio.Event()

    async def sleep(_: float) -> None:
        looked.set()
        await turns.get()

    async def look() -> None:
        looked.clear()
        turns.put_nowait(None)
        await looked.wait()

    api = Reviews()
    async with reading(tmp_path, api, needs_rights=False, sleep=sleep) as (reader, first):
        await looked.wait()
        (tmp_path / "tls.crt").write_bytes(b"half a file")
        for _ in range(2):
            await look()
        assert caplog.text.count("the certificate was not replaced") == 1
        assert await reader.metrics() == (200, "up 1\n")
        # The new certificate has another authority, so a reader who trusts the old one fails.
        write(tmp_path, made())
        await look()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with (
                aiohttp.ClientSession() as http,
                http.get(
                    reader._metrics + "/metrics",
                    ssl=ssl.create_default_context(cadata=first.authority.decode()),
                ),
            ):
                pass


@pytest.mark.parametrize("broken", ["certificate", "key"])
async def test_a_certificate_that_can_not_be_used_is_an_error(tmp_path: Path, broken: str) -> None:
    files = write(tmp_path, made())
    getattr(files, broken).write_bytes(b"none" if broken == "certificate" else made().key)
    metrics = SecureMetrics(Address(HOST, 0), files)
    with pytest.raises(OSError, match=r"tls\.crt"):
        async with serve_process((), metrics, Patient(), bytes, Reviews()):
            pass


@pytest.mark.parametrize("component", ["scheduler", "controllers", "webhook"])
async def test_the_rights_are_those_of_both_reviews(component: str) -> None:
    api = Reviews()
    await MetricsAccess(api, FakeClock()).authorize("Bearer good")
    text = shipped("manifests", f"{component}-metrics-rbac.yaml").read_text()
    role, binding = (part.value for part in read_yaml(text) if isinstance(part, Document))
    granted = [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    kinds = (TOKEN_REVIEW, SUBJECT_ACCESS_REVIEW)
    assert [kind.kind for kind in kinds] == [kind for kind, _ in api.specs]
    assert granted == [(kind.group, kind.plural, "create") for kind in kinds]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == f"optsched-{component}-metrics"
    account = {"name": f"optsched-{component}", "namespace": "volcano-system"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]


# --- reviews --------------------------------------------------------------------------------------


async def judge(access: MetricsAccess, token: str) -> int:
    return (await access.authorize(f"Bearer {token}")).status


async def test_reviews_are_remembered_for_a_short_time() -> None:
    api, clock = Reviews(), FakeClock()
    access = MetricsAccess(api, clock)
    for token, status, seconds, asked in (
        ("good", 200, ALLOWED_S, 2),
        ("other", 403, REFUSED_S, 2),
        ("forged", 401, REFUSED_S, 1),
    ):
        api.specs.clear()
        assert [await judge(access, token) for _ in range(3)] == [status] * 3
        assert len(api.specs) == asked
        clock.seconds += seconds - 0.1
        assert await judge(access, token) == status
        assert len(api.specs) == asked
        clock.seconds += 0.1
        assert await judge(access, token) == status
        assert len(api.specs) == 2 * asked


async def test_a_token_is_reviewed_once_for_all_that_send_it_together() -> None:
    api = Reviews()
    access = MetricsAccess(api, FakeClock())
    found = await asyncio.gather(*(judge(access, "good") for _ in range(20)))
    assert found == [200] * 20
    assert len(api.specs) == 2


async def test_unknown_tokens_do_not_push_out_the_good_one() -> None:
    api = Reviews()
    access = MetricsAccess(api, FakeClock())
    assert await judge(access, "good") == 200
    for i in range(2 * MAX_CACHED):
        assert await judge(access, f"forged-{i}") == 401
    api.specs.clear()
    assert await judge(access, "good") == 200
    assert not api.specs
    assert len(access._refused._young) + len(access._refused._old) <= 2 * MAX_CACHED


async def test_where_the_api_server_does_not_say_nobody_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Reviews()
    api.error = Unreachable("POST /apis: cut")
    access = MetricsAccess(api, FakeClock())
    assert [await judge(access, "good") for _ in range(3)] == [503] * 3
    # A failed authorization causes one log line, and the server retries it afterwards.
    assert caplog.text.count("metrics readers cannot be authorized") == 1
    api.error = None
    assert await judge(access, "good") == 200


@pytest.mark.parametrize(
    "header", ["", "good", "Basic good", "Bearer", "Bearer  ", "Bearer a\x00b", "Bearer ü"]
)
async def test_what_is_no_token_is_not_sent_to_the_api_server(header: str) -> None:
    api = Reviews()
    verdict = await MetricsAccess(api, FakeClock()).authorize(header)
    assert verdict.status == 401
    assert not api.specs


async def test_a_log_never_holds_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    api = Reviews()
    access = MetricsAccess(api, FakeClock())
    for error in (None, Unreachable("cut")):
        api.error = error
        await judge(access, "geheim-1")
    assert "geheim" not in caplog.text
    assert access._refused._young
    assert not any(b"geheim" in key for key in access._refused._young)
