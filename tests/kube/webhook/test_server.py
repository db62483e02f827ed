"""Reviews over HTTP and their cache of the cluster; tests/e2e/test_webhook.py covers TLS."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from optsched.admission.services import SERVICE_OF, SERVICES, TIMEOUT_S
from optsched.admission.world import Settings
from optsched.api.kinds import QUEUE, SUBJECT_ACCESS_REVIEW
from optsched.kube.cache.reflector import ABSENT_S
from optsched.kube.client.errors import Forbidden, NotFound, Rejected, Unreachable
from optsched.kube.webhook import server
from optsched.kube.webhook.server import (
    MAX_BODY,
    MAX_BYTES,
    MemoryBudget,
    Reviewer,
    ReviewThreads,
    WebhookMetrics,
    application,
)
from optsched.kube.webhook.server import SMALL as MAX_SMALL
from optsched.kube.webhook.world import KINDS, LiveWorld, TemplateValidator
from tests.admission.kit import container, job, task, template
from tests.kube.fakes import FakeApi, FakeClock, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from optsched.api.kinds import Kind
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Page

pytestmark = pytest.mark.asyncio


def named(kind: str, name: str, version: str = "v1", **parts: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **parts}


def queue(name: str, state: str = "Open", **spec: Any) -> dict[str, Any]:
    return named("Queue", name, QUEUE.api_version, spec=spec, status={"state": state})


def review(obj: Any = None, path: str = "/jobs/validate", **parts: Any) -> dict[str, Any]:
    kind = SERVICE_OF[path].kind
    request = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
        "name": "j",
        "namespace": "ml",
        "object": obj or job(),
        **parts,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


class Hook:
    """A webhook server with a fake cluster."""

    def __init__(
        self,
        *objects: dict[str, Any],
        api: type[FakeApi] = FakeApi,
        rules: Settings | None = None,
        body_s: float = 10.0,
    ) -> None:
        self.api = api(queue("default"), *objects)
        self.lanes = ReviewThreads()
        self.metrics = WebhookMetrics()
        self.failed: list[Kind] = []
        self.world = LiveWorld(FakeClock(), self.failed.append)
        clock = FakeClock()
        settings = rules or Settings()
        templates = TemplateValidator(self.api, "volcano-system", clock)
        reviewer = Reviewer(
            self.api, self.world, lambda: settings, self.metrics, clock, templates, self.lanes
        )
        self.app = application(SERVICES, reviewer, body_s)
        self.client: TestClient[Any, Any] = TestClient(TestServer(self.app))

    async def post(self, body: object, path: str = "/jobs/validate", **kw: Any) -> tuple[int, Any]:
        sent = BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": kw.get("content", "application/json; charset=utf-8")}
        async with self.client.request("POST", path, data=sent, headers=headers) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text)["response"] if is_json else text


@asynccontextmanager
async def following(hook: Hook) -> AsyncIterator[Hook]:
    tasks = [asyncio.create_task(w) for w in hook.world.watches(hook.api, waiting(FakeClock()))]
    try:
        async with hook.client:
            while hook.world.unsynced():
                await asyncio.sleep(0)
            yield hook
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_is_let_in_before_the_cluster_has_been_looked_at() -> None:
    hook = Hook()
    async with hook.client:
        status, text = await hook.post(review())
    assert (status, text) == (503, "not ready: the cluster has not been listed yet")


async def test_what_is_known_decides() -> None:
    dept = queue("dept")
    team = queue("team", parent="dept")
    high = named("PriorityClass", "high", "scheduling.k8s.io/v1")
    async with following(Hook(dept, team, high)) as hook:
        assert await hook.post(review()) == (200, {"uid": "u-1", "allowed": True})
        _, said = await hook.post(review(job(queue="dept", priorityClassName="high")))
        assert said["allowed"] is False
        assert said["status"]["message"] == (
            "can only submit job to leaf queue, queue dept has 1 child queues: "
            "spec.queue; name one of them: team"
        )
        assert "warnings" not in said


async def test_queues_and_marks_of_namespaces_are_known() -> None:
    marks = {"annotations": {"scheduling.volcano.sh/queue-name": "team"}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", **marks}}
    group = {"metadata": {"name": "g"}, "spec": {"queue": "default"}}
    async with following(Hook(space)) as hook:
        _, said = await hook.post(review(group, "/podgroups/mutate"), "/podgroups/mutate")
        assert said["patchType"] == "JSONPatch"


async def test_a_denial_is_looked_at_again_before_it_is_given() -> None:
    async with following(Hook()) as hook:
        hook.api.put(queue("new"))
        assert (await hook.post(review(job(queue="new"))))[1]["allowed"]
        hook.api.put(queue("new", "Closed"))
        # An outdated accepting state is harmless, so only denials are checked with the API server.
        assert (await hook.post(review(job(queue="new"))))[1]["allowed"]
        assert not (await hook.post(review(job(queue="gone"))))[1]["allowed"]
        hook.api.refuse("read", Unreachable("no answer"))
        assert not (await hook.post(review(job(queue="gone"))))[1]["allowed"]


async def test_a_child_that_is_gone_keeps_no_queue() -> None:
    async with following(Hook(queue("dept"), queue("team", parent="dept"))) as hook:
        old = queue("dept")
        body = review(
            None, "/queues/validate", operation="DELETE", name="dept", object=None, oldObject=old
        )
        body["request"]["object"] = None
        assert not (await hook.post(body, "/queues/validate"))[1]["allowed"]
        del hook.api.objects[next(ref for ref in hook.api.objects if ref.name == "team")]
        assert (await hook.post(body, "/queues/validate"))[1]["allowed"]
        assert [each.name for each in hook.world.queues()] == ["default", "dept"]


@pytest.mark.parametrize(
    ("body", "status", "start"),
    [
        (b"", 400, "not an AdmissionReview: "),
        (b"[" * 100_000, 400, "not an AdmissionReview: "),
        ([], 400, "not an AdmissionReview: the body is not an object"),
        ({"kind": "AdmissionReview"}, 400, "not an AdmissionReview: None/AdmissionReview is not"),
        (b"[" + b"{}," * 300_000 + b"1]", 413, "the review has 600001 values: send at most 400000"),
        (b"x" * (MAX_BODY + 1), 413, "Maximum request body size"),
        (b'{"a": NaN}', 400, "not an AdmissionReview: NaN is not a JSON number"),
        (b'{"kind":1,"kind":2}', 400, 'not an AdmissionReview: "kind" occurs twice'),
    ],
)
async def test_what_is_no_review_is_refused(body: object, status: int, start: str) -> None:
    async with following(Hook()) as hook:
        found, text = await hook.post(body)
        assert found == status
        assert text.startswith(start)


@pytest.mark.parametrize("content", ["text/plain", "application/yaml", "application/jsonp"])
async def test_what_is_not_said_to_be_json_is_not_read(content: str) -> None:
    async with following(Hook()) as hook:
        found = await hook.post(review(), content=content)
    assert found == (415, f"{content} is not supported: send application/json")


async def test_large_bodies_wait_for_room() -> None:
    """Each body reserves memory during reading and review; long waits end in a refusal."""
    room = MemoryBudget(10)
    taken: list[int] = []

    async def take(amount: int, until: asyncio.Event) -> None:
        async with room.reserve(amount):
            taken.append(amount)
            await until.wait()

    first, rest = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(take(amount, first)) for amount in (6, 4)]
    tasks += [asyncio.create_task(take(amount, rest)) for amount in (9, 8, 1)]
    await asyncio.sleep(0)
    assert taken == [6, 4]
    # A client that disconnects leaves the waiting line.
    tasks[2].cancel()
    await asyncio.sleep(0)
    first.set()
    while len(taken) < 4:
        await asyncio.sleep(0)
    assert taken == [6, 4, 8, 1]
    rest.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with room.reserve(10):
        assert not taken[4:]


async def test_a_body_without_room_is_sent_away() -> None:
    async with following(Hook(body_s=0.05)) as hook:
        large = review(job(task(template=template(container(args=["x" * MAX_SMALL])))))
        async with hook.lanes.reserve_memory(MAX_BYTES):
            found = await hook.post(large)
            assert found == (503, "too many reviews are in progress: try again")
            assert (await hook.post(review()))[1]["allowed"]
        assert (await hook.post(large))[1]["allowed"]
    assert b'path="/jobs/validate",result="busy"} 1.0' in hook.metrics.exposition()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_reviews_are_posted(method: str) -> None:
    async with following(Hook()) as hook:
        headers = {"Content-Type": "application/json"}
        sent = json.dumps(review()).encode()
        async with hook.client.request(
            method, "/jobs/validate", data=sent, headers=headers
        ) as answer:
            assert answer.status == 405
            assert "allowed" not in await answer.text()
        async with hook.client.request(method, "/jobs/approve", data=sent) as answer:
            assert answer.status == 404


async def test_reviews_of_the_largest_objects_are_read() -> None:
    """The review contains the old and the new version of an object of 1.5 MiB."""
    old, new = (job(task(template=template(container(args=["x" * 1_500_000])))) for _ in "ab")
    new["metadata"]["labels"] = {"a": "b"}
    async with following(Hook()) as hook:
        assert await hook.post(review(new, operation="UPDATE", oldObject=old)) == (
            200,
            {"uid": "u-1", "allowed": True},
        )
        new["spec"]["queue"] = "other"
        _, said = await hook.post(review(new, operation="UPDATE", oldObject=old))
        assert said["allowed"] is False


async def test_an_object_that_goes_deeper_than_we_can_is_denied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python's JSON parser accepts deeper nesting than its recursive functions."""
    deep = '{"metadata": ' * 450 + "1" + "}" * 450
    objects = [job(task(template="DEEP")), job(volumes=["DEEP"]), job(plugins="DEEP")]
    async with following(Hook()) as hook:
        for obj in objects:
            for around in ({}, {"operation": "UPDATE", "oldObject": job()}):
                text = json.dumps(review(obj, **around)).replace('"DEEP"', deep)
                status, said = await hook.post(text.encode())
                assert (status, said["allowed"]) == (200, False)


async def test_a_mistake_of_ours_is_a_denial(caplog: pytest.LogCaptureFixture) -> None:
    async with following(Hook()) as hook:

        def broken(name: str) -> None:
            raise RuntimeError(name)

        hook.world.queue = broken  # type: ignore[method-assign,assignment]
        status, said = await hook.post(review())
        assert (status, said["allowed"]) == (200, False)
        assert said["status"]["message"].startswith("this object cannot be reviewed")
        assert b'result="error"} 1.0' in hook.metrics.exposition()
    assert "RuntimeError: default" in caplog.text


async def test_kinds_that_are_not_installed_hold_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bare(FakeApi):
        async def list_page(
            self, kind: Kind, limit: int, token: str = "", _: object = None
        ) -> Page:
            if kind.group == "flow.volcano.sh":
                await asyncio.sleep(0)
                raise NotFound(404, "NotFound", "no such kind")
            return await super().list_page(kind, limit, token)

    hook = Hook()
    hook.api = Bare(queue("default"))
    async with following(hook):
        assert (await hook.post(review()))[1]["allowed"]
    assert hook.failed
    assert "jobtemplates of flow.volcano.sh/v1alpha1: cannot be followed" in caplog.text


async def test_every_request_is_counted() -> None:
    async with following(Hook()) as hook:
        await hook.post(review())
        await hook.post(review(job(minAvailable=9)))
        await hook.post(b"")
        text = hook.metrics.exposition().decode()
    for result in ("allowed", "denied", "malformed"):
        sample = f'optsched_admission_reviews_total{{path="/jobs/validate",result="{result}"}} 1.0'
        assert sample in text
    assert len(KINDS) == 4


# --- questions to the API server ------------------------------------------------------------------


class Judge(FakeApi):
    """A fake API that allows or denies every access review, and records the reviews."""

    may = True
    asked: list[dict[str, Any]]

    async def create(self, ref: Any, body: dict[str, Any]) -> dict[str, Any]:
        await self._begin("create", ref)
        assert ref.kind == SUBJECT_ACCESS_REVIEW
        self.asked = [body["spec"]]
        return {**body, "status": {"allowed": self.may}}


def judged(*objects: dict[str, Any], may: bool = True) -> tuple[Hook, Judge]:
    hook = Hook(*objects, api=Judge, rules=Settings(checks_use=True))
    assert isinstance(hook.api, Judge)
    hook.api.may = may
    return hook, hook.api


USER = {"username": "eve", "groups": ["lab"]}


@pytest.mark.parametrize("may", [True, False])
async def test_the_api_server_says_who_may_use_a_queue(may: bool) -> None:
    hook, judge = judged(may=may)
    async with following(hook):
        _, said = await hook.post(review(job(queue="default"), userInfo=USER))
    assert said["allowed"] is may
    assert judge.asked[0] == {
        "user": "eve",
        "groups": ["lab"],
        "resourceAttributes": {
            "group": "scheduling.volcano.sh",
            "version": "v1beta1",
            "resource": "queues",
            "verb": "use",
            "name": "default",
            "namespace": "ml",
        },
    }


async def test_without_an_answer_nothing_is_let_in() -> None:
    hook, judge = judged()
    judge.refuse("create", Unreachable("no answer"))
    async with following(hook):
        _, said = await hook.post(review(job(queue="default"), userInfo=USER))
    assert said["allowed"] is False
    assert said["status"]["message"] == (
        "the API server did not say whether the request is allowed: no answer"
    )


async def test_a_pod_that_joins_a_podgroup_needs_its_queue() -> None:
    spec = {"queue": "default"}
    group = named("PodGroup", "g", "scheduling.volcano.sh/v1beta1", spec=spec)
    group["metadata"]["namespace"] = "ml"
    joining = named("Pod", "p", spec={"schedulerName": "volcano"})
    joining["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
    body = review(joining, "/pods/validate", userInfo=USER)
    for objects, may, allowed in (
        ((group,), False, False),
        ((group,), True, True),
        ((), False, True),
    ):
        hook, _ = judged(*objects, may=may)
        async with following(hook):
            assert (await hook.post(body, "/pods/validate"))[1]["allowed"] is allowed


async def test_a_kind_that_is_not_installed_is_looked_for_once_a_minute() -> None:
    hook, slept = Hook(), list[float]()
    absent = NotFound(404, "NotFound", "the server could not find the requested resource")
    hook.api.refuse("list", *[absent] * len(KINDS) * 3)
    watches = hook.world.watches(hook.api, waiting(FakeClock(), slept))
    tasks = [asyncio.create_task(watch) for watch in watches]
    async with hook.client:
        while len(slept) < 3 * len(KINDS):
            await asyncio.sleep(0)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(slept[: 3 * len(KINDS)]) == {ABSENT_S}


async def test_a_server_that_is_away_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Hook()
    hook.api.refuse("list", *[Unreachable("refused")] * len(KINDS) * 3)
    async with following(hook):
        pass
    (line,) = (r.message for r in caplog.records if r.levelname == "WARNING")
    assert line.endswith("cannot be followed: refused")


# --- pod templates --------------------------------------------------------------------------------


async def test_a_template_is_validated_once_and_a_mistake_names_its_field() -> None:
    hook = Hook()
    causes = (("template.spec.containers[0].name", "Required value"),)
    hook.api.refuse("validate", Rejected(422, "Invalid", "is invalid", None, causes))
    async with following(hook):
        _, said = await hook.post(review(job(minAvailable=9)))
        assert said["status"]["message"] == (
            "spec.tasks[0].template.spec.containers[0].name: Required value; "
            "job 'minAvailable' should not be greater than total replicas in tasks: "
            "spec.minAvailable is 9, the tasks have 2"
        )
        for _ in range(3):
            assert (await hook.post(review()))[1]["allowed"]
    assert len(hook.api.validated) == 1


@pytest.mark.parametrize(
    "error", [Unreachable("no answer"), Forbidden(403, "Forbidden", "podtemplates is forbidden")]
)
async def test_without_a_verdict_on_its_templates_no_job_is_let_in(error: KubeError) -> None:
    hook = Hook()
    hook.api.refuse("validate", error)
    async with following(hook):
        _, said = await hook.post(review())
    assert said["allowed"] is False
    assert said["status"]["message"] == (
        f"the API server did not say whether the request is allowed: {error}"
    )


async def test_a_job_with_a_problem_beyond_the_limits_raises_no_questions() -> None:
    hook = Hook()
    pods = template(*[container()] * 501)
    async with following(hook):
        _, said = await hook.post(review(job(task("a"), task("b", template=pods))))
    assert said["allowed"] is False
    assert hook.api.validated == []


async def test_an_api_server_that_is_silent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The denial comes before the timeout of the API server that waits for the review."""

    class Silent(FakeApi):
        async def validate(self, ref: Any, body: dict[str, Any]) -> tuple[str, ...]:
            await asyncio.Event().wait()
            return ()

    assert server.ANSWERS_S < TIMEOUT_S
    monkeypatch.setattr(server, "ANSWERS_S", 0.05)
    async with following(Hook(api=Silent)) as hook:
        _, said = await hook.post(review())
    assert said["allowed"] is False
    assert said["status"]["message"] == (
        "the API server did not say within 0.05 s whether the request is allowed: try again"
    )
