"""What reviews read from the API server: watched objects, and dry runs of pod templates."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from optsched.admission.review import Question, TemplateQuestion, TemplateVerdict
from optsched.api.kinds import JOB_TEMPLATE, NAMESPACE, POD_TEMPLATE, PRIORITY_CLASS, QUEUE, Ref
from optsched.api.queue import parse_queue
from optsched.api.wellknown import DEFAULT_QUEUE
from optsched.kube.cache.object_store import Store, StoreFollower
from optsched.kube.client.errors import KubeError, NotFound, Rejected
from optsched.kube.runtime.lifecycle import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from optsched.api.kinds import Kind
    from optsched.api.queue import Queue
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

KINDS: Final = (QUEUE, NAMESPACE, PRIORITY_CLASS, JOB_TEMPLATE)

log = logging.getLogger(__name__)


class LiveWorld:
    """A `World` that is kept up to date while the coroutines of `watches` run.

    Any thread may read this object; each call sees a consistent state of one kind.
    """

    def __init__(self, clock: Clock, on_failure: Callable[[Kind], None]) -> None:
        self._store = Store(KINDS, (), clock, self._changed)
        self._on_failure = on_failure
        self._queues: dict[str, Queue] = {}
        self._children: dict[str, dict[str, Queue]] = {}
        self._default_classes: tuple[str, ...] = ()

    # --- World -----------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue | None:
        """See `World`."""
        return self._queues.get(name)

    def queues(self) -> Iterable[Queue]:
        """See `World`."""
        return tuple(self._queues.values())

    def children(self, name: str) -> tuple[Queue, ...]:
        """See `World`."""
        return tuple(self._children.get(name, {}).values())

    def namespace_annotations(self, name: str) -> Mapping[str, str]:
        """See `World`."""
        namespace = self._store.get(NAMESPACE, "", name) or {}
        return (namespace.get("metadata") or {}).get("annotations") or {}

    def has_priority_class(self, name: str) -> bool:
        """See `World`."""
        return self._store.get(PRIORITY_CLASS, "", name) is not None

    def default_priority_class(self) -> str | None:
        """See `World`."""
        return next(iter(self._default_classes), None)

    def template_queue(self, namespace: str, name: str) -> str | None:
        """See `World`."""
        template = self._store.get(JOB_TEMPLATE, namespace, name)
        if template is None:
            return None
        return str((template.get("spec") or {}).get("queue") or DEFAULT_QUEUE)

    # --- watches ---------------------------------------------------------------------------------

    def unsynced(self) -> list[str]:
        """Return the plural names of the kinds that have not been listed yet."""
        return self._store.unsynced()

    def watches(self, source: Client, timing: Timing) -> Iterator[Coroutine[None, None, None]]:
        """Return the coroutines that keep the objects in this `LiveWorld` up to date."""
        follower = StoreFollower(source, self._store, timing, Outage(), self._on_failure)
        return (follower.follow(kind) for kind in KINDS)

    async def refresh_objects(self, api: Client, refs: Iterable[Ref]) -> bool:
        """Read objects again from the API server; return whether any object has changed."""
        has_changed = False
        for ref in refs:
            before = self._store.get(ref.kind, ref.namespace, ref.name)
            try:
                self._store.record_written(ref.kind, await api.read(ref))
            except NotFound:
                self._store.record_deleted(ref, "")
            except KubeError as error:
                # An unreadable object keeps its last known state, so the request is still denied.
                log.warning("%s: cannot be read: %s", ref, error)
            has_changed |= self._store.get(ref.kind, ref.namespace, ref.name) is not before
        return has_changed

    def _changed(self, kind: Kind, before: Raw | None, after: Raw | None) -> None:
        if kind == PRIORITY_CLASS:
            # If there are several default PriorityClasses, the oldest applies.
            changed = str((before or after or {})["metadata"]["name"])
            names = tuple(name for name in self._default_classes if name != changed)
            is_default = after is not None and after.get("globalDefault") is True
            self._default_classes = (*names, changed) if is_default else names
        if kind != QUEUE:
            return
        old = self._queues.get(before["metadata"]["name"]) if before else None
        queue = parse_queue(after)[0] if after else None
        # Reviews in other threads read the queues, so a queue that exists must never be missing.
        if queue is not None:
            self._queues[queue.name] = queue
            self._children.setdefault(queue.parent, {})[queue.name] = queue
        if old is not None and queue is None:
            del self._queues[old.name]
        if old is not None and (queue is None or queue.parent != old.parent):
            siblings = self._children[old.parent]
            siblings.pop(old.name)
            if not siblings:
                del self._children[old.parent]


MAX_CACHED: Final = 4096
"""Maximum number of accepted templates to remember, by their digests."""

CACHED_S: Final = 600.0
"""Seconds for which an accepted template is remembered; an upgraded server may reject it later."""

MAX_DRY_RUNS: Final = 32
"""Maximum number of concurrent dry runs in all reviews together."""

MAX_DRY_RUNS_OF_REVIEW: Final = 8
"""Maximum number of concurrent dry runs per review, so that no large job delays other jobs."""


class AcceptedTemplates(Mapping[Question, TemplateVerdict]):
    """Verdicts on the pod templates that the API server accepted; any thread may read them."""

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
        """Yield no verdict, because the cache holds only digests of templates."""
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
