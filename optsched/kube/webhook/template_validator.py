"""Validate pod templates by dry runs, and remember the templates that the server accepted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from optsched.admission.review import Question, TemplateQuestion, TemplateVerdict
from optsched.api.kinds import POD_TEMPLATE, Ref
from optsched.kube.client.errors import KubeError, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.kube.client.client import Client
    from optsched.session.ports import Clock

MAX_CACHED: Final = 4096
"""Maximum number of accepted templates to remember, by their digests."""

CACHED_S: Final = 600.0
"""Seconds for which an accepted template is remembered; an upgraded server may reject it later."""

MAX_DRY_RUNS: Final = 32
"""Maximum number of concurrent dry runs in all reviews together."""

MAX_DRY_RUNS_OF_REVIEW: Final = 8
"""Maximum number of concurrent dry runs in one review, so that large jobs do not block others."""


class AcceptedTemplates(Mapping[Question, TemplateVerdict]):
    """Verdicts on the templates that the API server accepted; safe to read from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._verdicts: OrderedDict[str, tuple[float, TemplateVerdict]] = OrderedDict()

    def __getitem__(self, question: object) -> TemplateVerdict:
        if not isinstance(question, TemplateQuestion):
            raise KeyError(question)
        end_s, verdict = self._verdicts[question.digest]
        if self._clock.monotonic() >= end_s:
            raise KeyError(question)
        return verdict

    def __iter__(self) -> Iterator[Question]:
        """Yield nothing, because the cache holds only template digests."""
        return iter(())

    def __len__(self) -> int:
        return len(self._verdicts)

    def add(self, question: TemplateQuestion, verdict: TemplateVerdict) -> None:
        """Remember a verdict for `CACHED_S`; beyond `MAX_CACHED` verdicts, drop the oldest."""
        self._verdicts[question.digest] = (self._clock.monotonic() + CACHED_S, verdict)
        self._verdicts.move_to_end(question.digest)
        if len(self._verdicts) > MAX_CACHED:
            self._verdicts.popitem(last=False)


class TemplateValidator:
    """Validates pod templates by dry runs on the API server.

    A dry run creates a PodTemplate without storing it. This project's webhooks do not review
    PodTemplates, so no review waits for another review.

    `namespace` is a namespace in which this process may create PodTemplates; it does not affect the
    result.
    """

    def __init__(self, api: Client, namespace: str, clock: Clock) -> None:
        self._api = api
        self._ref = Ref(POD_TEMPLATE, namespace, "")
        self.accepted = AcceptedTemplates(clock)
        self._slots = asyncio.Semaphore(MAX_DRY_RUNS)

    async def validate(
        self, questions: Iterable[TemplateQuestion]
    ) -> dict[TemplateQuestion, TemplateVerdict]:
        """Return a verdict for each template; raises KubeError if the server gives no verdict."""
        verdicts: dict[TemplateQuestion, TemplateVerdict] = {}
        waiting = iter(questions)

        async def validate_in_turn() -> None:
            for question in waiting:
                verdict = self.accepted.get(question)
                if verdict is None:
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
                        verdict = TemplateVerdict(e.causes or (("", e.message or e.title),))
                    else:
                        verdict = TemplateVerdict(warnings=warnings)
                        self.accepted.add(question, verdict)
                verdicts[question] = verdict

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(MAX_DRY_RUNS_OF_REVIEW):
                    group.create_task(validate_in_turn())
        except* KubeError as errors:
            raise errors.exceptions[0] from None
        return verdicts
