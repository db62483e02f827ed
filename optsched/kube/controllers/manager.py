"""Run controllers with watches, a work queue and an executor of effects.

The work queue holds the keys of the objects to reconcile. Watch events and this process's writes
add keys to the work queue. Only one worker at a time reconciles the object of a key, in its current
state. The effects of a reconciliation are executed before the object is reconciled again. A crash
loses no work, because the next leader reconciles every object once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.api.json_fields import ref_of, uid_of
from optsched.api.kinds import LEASE, POD_GROUP, QUEUE
from optsched.controllers.controller import scopes_of
from optsched.controllers.effects import Again, PatchStatus
from optsched.controllers.queue import groups_by_phase
from optsched.kube.cache.object_store import Store, StoreFollower
from optsched.kube.client.errors import KubeError
from optsched.kube.controllers.executor import (
    Executor,
    ExecutorContext,
    Stale,
    UfmClient,
    is_answered,
)
from optsched.kube.runtime.lifecycle import Outage
from optsched.kube.runtime.work_queues import WorkQueue

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Sequence,
    )

    from optsched.api.kinds import Kind, Ref
    from optsched.controllers.controller import Controller
    from optsched.controllers.effects import Effect, Question
    from optsched.kube.cache.object_store import Watch
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.controllers.executor import ControllerMetrics
    from optsched.kube.runtime.events import EventRecorder, Note
    from optsched.kube.runtime.leader_election import Leadership
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

WORKERS: Final = 64
"""Maximum number of concurrent reconciliations, most of which wait for the API server."""

POLL_S: Final = 0.2
"""Seconds between two leadership checks."""

NUMBERS_EVERY_S: Final = 2.0
"""Minimum interval in seconds between the deferrable status writes of one object."""

WARN_AGAIN_AFTER: Final = 5
"""Number of consecutive failures to reconcile an object after which a failure is logged again."""

_REMEMBERED: Final = 256
"""Maximum number of objects for which the time of the last status write is remembered."""

Key: TypeAlias = "tuple[int, Ref]"
"""What a worker reconciles: the index of a controller in the manager's list, and an object."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManagerDependencies:
    """The dependencies of a manager; the caller runs every dependency with a `run` method.

    `reads_again` is true if every kind is listed again when this process becomes the leader.
    """

    api: Client
    events: EventRecorder
    metrics: ControllerMetrics
    leadership: Leadership
    clock: Clock
    timing: Timing
    is_answered: Callable[[Question], Awaitable[bool]] = is_answered
    reads_again: bool = False
    outage: Outage = field(default_factory=Outage)


class Manager:
    """Runs controllers while `run` is active."""

    def __init__(
        self, controllers: Sequence[Controller], dependencies: ManagerDependencies
    ) -> None:
        self._controllers = tuple(controllers)
        self._deps = dependencies
        kinds = dict.fromkeys(
            kind
            for each in controllers
            for kind in sorted(each.kinds, key=lambda kind: (kind.group, kind.kind))
        )
        indexes = [index for each in controllers for index in each.indexes]
        self.store = Store(
            kinds, indexes, dependencies.clock, self._changed, scopes_of(controllers)
        )
        self._interested: dict[Kind, list[int]] = {
            kind: [i for i, each in enumerate(controllers) if kind in (each.kind, *each.wakes)]
            for kind in kinds
        }
        context = ExecutorContext(
            events=dependencies.events,
            metrics=dependencies.metrics,
            may_write=lambda: self._leads and dependencies.leadership.is_leading,
            is_answered=dependencies.is_answered,
            ask_fabric=UfmClient(dependencies.api, dependencies.clock).read_fabric,
        )
        self._executor = Executor(dependencies.api, self.store, context)
        self._queue: WorkQueue[Key] = WorkQueue(dependencies.timing.chance)
        self._leads = False
        self._written_s: dict[Ref, float] = {}
        self._deferred_s: dict[Ref, float] = {}
        """Monotonic time in seconds at which each object's status patch was first deferred."""
        self._stopping = asyncio.Event()
        failures = dependencies.metrics.watch_failures
        self._follower = StoreFollower(
            dependencies.api,
            self.store,
            dependencies.timing,
            dependencies.outage,
            lambda kind: failures.labels(kind.plural).inc(),
        )
        self._follows: dict[Watch, asyncio.Task[None]] = {}
        dependencies.metrics.depth.set_function(lambda: len(self._queue))
        counts_groups = {QUEUE, POD_GROUP} <= kinds.keys()
        # Only the leader reports the numbers of PodGroups.
        dependencies.metrics.count_groups = lambda: (
            groups_by_phase(self.store) if counts_groups and self._leads else {}
        )

    # --- public ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    def trouble(self) -> str:
        """Return an empty string (see `Probes`).

        The event loop that answers the probe also reconciles, so if a reconciliation hangs, the
        probe gets no answer.
        """
        return ""

    def unready(self) -> str:
        """Return which kinds are not listed yet (see `Probes`); a ready process need not lead."""
        missing = self.store.unsynced()
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def may_report(self, note: Note) -> bool:
        """Return whether this process leads and the object of an event still exists."""
        leads = self._leads and self._deps.leadership.is_leading
        return leads and self.exists(note.about, note.uid)

    def exists(self, about: Ref, uid: str) -> bool:
        """Return whether an object exists; always true for kinds not watched completely."""
        if about.kind not in self.store.kinds or self.store.is_narrow(about.kind):
            return True
        known = self.store.get(about.kind, about.namespace, about.name)
        return known is not None and uid in ("", uid_of(known))

    # --- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch and reconcile until `stop` is called."""
        async with asyncio.TaskGroup() as group:
            for kind in self.store.kinds:
                for scope in self.store.scopes(kind):
                    follow = self._follower.follow(kind, scope)
                    self._follows[kind, scope] = group.create_task(follow)
            tasks = [group.create_task(self._work()) for _ in range(WORKERS)]
            tasks.append(group.create_task(self._watch_leadership(group)))
            await self._stopping.wait()
            for task in (*tasks, *self._follows.values()):
                task.cancel()

    async def _watch_leadership(self, group: asyncio.TaskGroup) -> None:
        known_term = 0
        while True:
            term = self._deps.leadership.term
            if term != known_term and self._leads:
                # The work queue is cleared even if this process leads again, because writes between
                # its two terms as leader were dropped.
                self._leads = False
                self._deps.metrics.leading.set(False)
                # An outage of the server was already reported.
                level = logging.INFO if self._deps.outage.is_active else logging.WARNING
                log.log(level, "leadership lost: another process may reconcile")
                self._deps.outage.retain(lambda about: about == LEASE or about in self._follows)
                self._queue.clear()
                self._deferred_s.clear()
            if term not in (0, known_term) and not self.store.unsynced() and self._deps.reads_again:
                # A watch may have missed events during another leader's term. Every kind is
                # therefore listed again before this process reconciles as the new leader.
                self._follower.stale = self._follows.keys() - self._follower.absent
                for kind, scope in self._follower.stale:
                    self._follows[kind, scope].cancel()
                    again = self._follower.follow(kind, scope, was_there=True)
                    self._follows[kind, scope] = group.create_task(again)
            known_term = term
            leads = term != 0 and not self.store.unsynced() and not self._follower.stale
            if leads and not self._leads:
                self._leads = True
                self._deps.metrics.leading.set(True)
                names = dict.fromkeys(controller.name for controller in self._controllers)
                log.info("leading: reconciling %s", ", ".join(names))
                for kind in self.store.kinds:
                    for obj in self.store.listed(kind):
                        self._wake(kind, (obj,))
            await self._deps.timing.sleep(POLL_S)

    # --- changes ---------------------------------------------------------------------------------

    def _changed(self, kind: Kind, before: Raw | None, after: Raw | None) -> None:
        if self._leads:
            self._wake(kind, [obj for obj in (before, after) if obj is not None])

    def _wake(self, kind: Kind, objs: Sequence[Raw]) -> None:
        """Queue the keys of the objects to reconcile after an object has changed.

        `objs` holds the states of the changed object before and after the change.
        """
        for number in self._interested[kind]:
            controller = self._controllers[number]
            facet = controller.facets.get(kind)
            if facet is not None and len(objs) > 1 and facet(objs[0]) == facet(objs[1]):
                continue
            wakes = controller.wakes.get(kind)
            for obj in objs:
                ref = ref_of(kind, obj)
                if kind == controller.kind:
                    self._queue.add((number, ref))
                try:
                    woken = () if wakes is None else tuple(wakes(obj, self.store))
                except Exception:
                    # An error in one controller must not stop other controllers.
                    message = "%s: cannot find the keys to reconcile after a change of %s"
                    log.exception(message, controller.name, ref)
                    self._deps.metrics.reconciled(controller.name, "error")
                    continue
                for key in woken:
                    self._queue.add((number, key))

    # --- working ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self._queue.next_key()
            if not self._leads:
                self._queue.mark_done(key)
                continue
            await self._reconcile(key)
            # A reconciliation without writes never awaits, so the worker yields to other asyncio
            # tasks here.
            await asyncio.sleep(0)

    async def _reconcile(self, key: Key) -> None:
        controller, ref = self._controllers[key[0]], key[1]
        began_s = self._deps.clock.monotonic()
        try:
            effects = controller.decide(ref, self.store)
            if not any(isinstance(effect, PatchStatus) for effect in effects):
                self._deferred_s.pop(ref, None)
            effects = tuple(self._delay_status(effect, began_s) for effect in effects)
            log.debug("%s %s: %d effects", controller.name, ref, len(effects))
            requeues = await self._executor.carry_out(effects)
        except Stale as e:
            log.debug("%s %s: %s", controller.name, ref, e)
            self._requeue(key, "stale")
            return
        except KubeError as e:
            failures = self._requeue(key, "refused")
            is_reported = self._deps.outage.record_failure(key, e)
            if is_reported and (failures in (1, WARN_AGAIN_AFTER) or failures % 100 == 0):
                times = "once" if failures == 1 else f"{failures} times"
                log.warning("%s %s: failed %s, will retry: %s", controller.name, ref, times, e)
            return
        except Exception:
            # An error about one object must not stop the reconciliation of other objects.
            log.exception("%s %s: failed", controller.name, ref)
            self._requeue(key, "error")
            return
        self._queue.mark_done(key)
        self._deps.outage.record_success(key)
        written = [effect.ref for effect in effects if isinstance(effect, PatchStatus)]
        now_s = self._deps.clock.monotonic()
        for ref_written in written:
            self._deferred_s.pop(ref_written, None)
            self._written_s[ref_written] = now_s
        if written and len(self._written_s) > _REMEMBERED:
            since_s = now_s - NUMBERS_EVERY_S
            self._written_s = {
                each: at_s for each, at_s in self._written_s.items() if at_s > since_s
            }
        for requeue in requeues:
            self._queue.add_after((key[0], requeue.key or ref), requeue.after_s)
        self._deps.metrics.reconciled(controller.name, "done", now_s - began_s)

    def _delay_status(self, effect: Effect, now_s: float) -> Effect:
        """Return the effect, or a delayed requeue in place of a status patch that must wait."""
        if not (isinstance(effect, PatchStatus) and effect.may_wait_s):
            return effect
        due_s = self._deferred_s.setdefault(effect.ref, now_s) + effect.may_wait_s
        if effect.ref in self._written_s:
            due_s = max(due_s, self._written_s[effect.ref] + NUMBERS_EVERY_S)
        return Again(due_s - now_s) if now_s < due_s else effect

    def _requeue(self, key: Key, result: str) -> int:
        self._deps.metrics.reconciled(self._controllers[key[0]].name, result)
        return self._queue.retry_later(key)
