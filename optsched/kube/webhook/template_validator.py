"""Validates pod templates by dry runs, and remembers which ones the API server has accepted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from optsched.admission.review import TemplateQuestion, TemplateVerdict
from optsched.api.kinds import POD_TEMPLATE, Ref
from optsched.kube.client.errors import KubeError, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.kube.client.interfaces import ValidatingApi
    from optsched.session.ports import Clock

MAX_CACHED: Final = 4096
"""Accepted templates that are remembered, by digest."""

CACHED_S: Final = 600.0
"""How long an accepted template is remembered: the API server may be upgraded meanwhile."""

MAX_DRY_RUNS: Final = 32
"""Dry runs at one time, of all reviews."""

MAX_DRY_RUNS_OF_REVIEW: Final = 8
"""Dry runs at one time of one review, so that a job of many templates leaves room for others."""


class TemplateValidator:
    """Asks the API server whether pod templates are valid.

    Nothing is stored: each request is a dry run that creates a PodTemplate. Webhooks of this
    project do not review that kind, so no review waits for another one.

    namespace: in which PodTemplates may be created. Validation does not depend on it.
    """

    def __init__(self, api: ValidatingApi, namespace: str, clock: Clock) -> None:
        self._api = api
        self._ref = Ref(POD_TEMPLATE, namespace, "")
        self._clock = clock
        self._accepted: OrderedDict[str, tuple[float, TemplateVerdict]] = OrderedDict()
        self._slots = asyncio.Semaphore(MAX_DRY_RUNS)

    async def validate(
        self, questions: Iterable[TemplateQuestion]
    ) -> dict[TemplateQuestion, TemplateVerdict]:
        """Return a verdict for each template; raises KubeError where the server gives none."""
        verdicts: dict[TemplateQuestion, TemplateVerdict] = {}
        waiting = iter(questions)

        async def validate_in_turn() -> None:
            for question in waiting:
                verdicts[question] = await self._validate_template(question)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(MAX_DRY_RUNS_OF_REVIEW):
                    group.create_task(validate_in_turn())
        except* KubeError as errors:
            raise errors.exceptions[0] from None
        return verdicts

    async def _validate_template(self, question: TemplateQuestion) -> TemplateVerdict:
        cached = self._accepted.get(question.digest)
        if cached and self._clock.monotonic() < cached[0]:
            return cached[1]
        body = {
            "apiVersion": POD_TEMPLATE.api_version,
            "kind": POD_TEMPLATE.kind,
            "metadata": {"generateName": "optsched-"},
            "template": question.template,
        }
        try:
            async with self._slots:
                warnings = await self._api.validate(self._ref, body)
        except Rejected as e:
            return TemplateVerdict(e.causes or (("", e.message or e.title),))
        verdict = TemplateVerdict(warnings=warnings)
        self._accepted[question.digest] = (self._clock.monotonic() + CACHED_S, verdict)
        self._accepted.move_to_end(question.digest)
        if len(self._accepted) > MAX_CACHED:
            self._accepted.popitem(last=False)
        return verdict
