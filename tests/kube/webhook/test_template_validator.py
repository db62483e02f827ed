from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from optsched.admission.review import TemplateQuestion, TemplateVerdict
from optsched.kube.client.errors import Forbidden, Rejected, Unreachable
from optsched.kube.webhook.world import (
    CACHED_S,
    MAX_CACHED,
    MAX_DRY_RUNS_OF_REVIEW,
    TemplateValidator,
)
from tests.kube.fakes import FakeApi, FakeClock

if TYPE_CHECKING:
    from optsched.api.kinds import Ref
    from optsched.kube.client.listing import Raw

pytestmark = pytest.mark.asyncio

NAMESPACE = "volcano-system"


def question(name: str = "a") -> TemplateQuestion:
    return TemplateQuestion(name, {"spec": {"containers": [{"name": name}]}})


def validator(api: Any = None) -> tuple[TemplateValidator, FakeApi, FakeClock]:
    api, clock = api or FakeApi(), FakeClock()
    return TemplateValidator(api, NAMESPACE, clock), api, clock


async def test_a_template_is_sent_in_the_namespace_of_the_webhook() -> None:
    templates, api, _ = validator()
    assert await templates.validate([question()]) == {question(): TemplateVerdict()}
    assert api.validated == [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"generateName": "optsched-"},
            "template": question().template,
        }
    ]
    assert api.objects == {}


async def test_an_accepted_template_is_remembered_for_a_while() -> None:
    templates, api, clock = validator()
    for _ in range(3):
        await templates.validate([question()])
    assert len(api.validated) == 1
    clock.seconds += CACHED_S
    await templates.validate([question()])
    assert len(api.validated) == 2


async def test_only_so_many_templates_are_remembered() -> None:
    templates, api, _ = validator()
    names = [f"t{index}" for index in range(MAX_CACHED + 1)]
    await templates.validate([question(name) for name in names])
    await templates.validate([question(names[-1])])
    assert len(api.validated) == len(names)
    await templates.validate([question(names[0])])
    assert len(api.validated) == len(names) + 1


async def test_a_refused_template_is_asked_about_again() -> None:
    templates, api, _ = validator()
    causes = (("template.spec.containers", "Required value"),)
    invalid = Rejected(422, "Invalid", "PodTemplate is invalid", None, causes)
    api.refuse("validate", invalid, Rejected(400, "BadRequest", "no JSON"))
    verdicts = [(await templates.validate([question()]))[question()] for _ in range(3)]
    assert verdicts == [
        TemplateVerdict(causes),
        TemplateVerdict((("", "no JSON"),)),
        TemplateVerdict(),
    ]


@pytest.mark.parametrize("error", [Unreachable("no answer"), Forbidden(403, "Forbidden", "no")])
async def test_without_a_verdict_there_is_an_error(error: Any) -> None:
    templates, api, _ = validator()
    api.refuse("validate", error)
    with pytest.raises(type(error)):
        await templates.validate([question("a"), question("b")])
    assert len(await templates.validate([question("a"), question("b")])) == 2


async def test_one_review_sends_few_dry_runs_together() -> None:
    class Slow(FakeApi):
        running, most = 0, 0

        async def validate(self, ref: Ref, body: Raw) -> tuple[str, ...]:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return ("w",)

    api = Slow()
    templates, _, _ = validator(api)
    questions = [question(f"t{index}") for index in range(5 * MAX_DRY_RUNS_OF_REVIEW)]
    verdicts = await templates.validate(questions)
    assert api.most == MAX_DRY_RUNS_OF_REVIEW
    assert verdicts == dict.fromkeys(questions, TemplateVerdict(warnings=("w",)))
