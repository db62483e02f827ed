"""Evict the victims of a plan, and nominate the tasks that will use their resources.

If a plan moves pods to free capacity for a gang, the gang is annotated with the moves before the
eviction (see `cluster.relocation`). As soon as a plan is made, the cache treats its victims as
terminating, and the tasks that wait for their resources as nominated. Nominations are written
before evictions are sent, so another scheduler that takes over finds them in the pods'
`status.nominatedNodeName`. Pods are evicted through the eviction API, so that the server enforces
disruption budgets.

The administrator may let guarantees override disruption budgets. If a budget blocks the eviction of
a pod that is reclaimed within a guarantee, the pod is deleted instead. If a budget blocks any other
eviction, the eviction fails, and the gang that needs the eviction is scheduled again after a delay.

A victim gets its grace period, up to the administrator's limit, and keeps its resources until it
terminates.

UID and resource version are preconditions of an eviction, so a pod that has just finished is not
deleted, and its logs remain. If a later plan does not need an eviction that is not sent yet, the
eviction is withdrawn. If some victims of a gang are already evicted and the remaining tasks would
be fewer than the gang's minimum, the gang's other victims are evicted too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from optsched.api.json_fields import version_of
from optsched.api.kinds import POD_GROUP, Ref
from optsched.api.wellknown import EVICTED, MOVES
from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.relocation import records
from optsched.formats.codec.pod_groups import shuffle_annotation
from optsched.formats.codec.pods.reader import is_standing, is_upstream
from optsched.kube.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    Rejected,
    ServerFault,
    TooMany,
)
from optsched.kube.client.listing import pod_ref
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.kube.scheduler.outcomes import Victim
from optsched.kube.scheduler.status import StatusPatch
from optsched.kube.scheduler.status_writer import DisruptionReset, mark_disruption, write_key
from optsched.plugins.eviction.victims import GuaranteedReclaims
from optsched.plugins.gangs.gang import is_below_minimum
from optsched.plugins.verification.world import World
from optsched.session.budgets import limit_budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.timing import Timing
    from optsched.kube.scheduler.binder import GangBackoff
    from optsched.kube.scheduler.outcomes import OutcomeReporter
    from optsched.kube.scheduler.status_writer import Write

MAX_CONCURRENT: Final = 16

POLL_S: Final = 0.02
"""Interval in seconds between checks whether waiting evictions may be sent."""

REPORT_S: Final = 2.0
"""Seconds for which an eviction waits before a warning reports the reason."""

PATIENCE_S: Final = 10.0
"""Seconds after which an eviction is sent even if its nominations are not written.

The running scheduler still reserves the resources for the nominated gang. If another scheduler
starts before the nominations are written, that scheduler does not reserve the resources.
"""

_BUDGET_CAUSE: Final = "DisruptionBudget"
_NAMED_BUDGET: Final = re.compile(r"The disruption budget (\S+) ")
_SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"
"""Part of the server's error message if several disruption budgets select a pod."""

CONFLICTS: Final = 5
"""Maximum number of conflicts after which an eviction request is repeated."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Batch:
    """Victims from one gang, evicted for the same preemptor: either the whole gang or a single pod.

    `preemptor` is the gang that gets the resources. `nodes` lists the nodes to which the plan
    nominates the preemptor's tasks, if any. `ready` holds the keys of the tasks that counted
    towards the minimum of the victims' gang before the plan. `is_final` is true if the batch's
    evictions can no longer be withdrawn, because the victims' gang has fallen below its minimum.
    """

    preemptor: str
    nodes: frozenset[str]
    ready: frozenset[str]
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class _Override:
    """The queue guarantee because of which a pod is reclaimed despite its disruption budgets.

    `queue` is the guaranteed queue. `budgets` are the keys of the budgets that selected the pod in
    the snapshot. The snapshot was taken at `taken_ms` (milliseconds since the Unix epoch).
    """

    queue: str
    budgets: tuple[str, ...]
    taken_ms: int

    def describe(self, namespace: str, refusal: ApiError) -> str:
        """Describe which budgets the guarantee overrides, given the server's error."""
        texts = (refusal.message, *(message for _, message in refusal.causes))
        named = [f"{namespace}/{name}" for text in texts for name in _NAMED_BUDGET.findall(text)]
        keys = sorted({*named, *(() if named else self.budgets)})
        noun = "disruption budgets" if len(keys) > 1 else "disruption budget"
        names = f"the {noun} {', '.join(keys)}" if keys else "disruption budgets"
        return f"the guarantee of queue {self.queue} overrides {names}"


@dataclass(slots=True, eq=False)
class _Pending:
    """An eviction that is planned or was sent, and whose result is not known yet.

    `override` is None if the eviction must respect disruption budgets. `after` holds the keys of
    the writes that must precede the eviction. `num_polls` counts the checks that found the eviction
    not ready to be sent. `is_sent` is true while a request is in progress, and `has_failed` is true
    if an earlier request failed. `is_unwanted` is true if the newest plan does not need the
    eviction. `is_marked` is true if the pod's condition DisruptionTarget announces a deletion.
    """

    victim: Victim
    batch: _Batch
    after: tuple[Ref, ...]
    override: _Override | None = None
    num_polls: int = 0
    is_sent: bool = False
    has_failed: bool = False
    is_unwanted: bool = False
    is_marked: bool = False

    @property
    def waited_s(self) -> float:
        """Lower bound on the waiting time of this eviction, in seconds."""
        return self.num_polls * POLL_S


@dataclass(frozen=True, slots=True)
class EvictorContext:
    """Dependencies of an evictor.

    `gang_backoff`, which the binder shares, excludes gangs from scheduling after failures.
    `may_evict` returns whether this process still leads; it is called before every request.
    `max_grace_s` is the longest grace period of a victim in seconds, or None for no limit.
    `overrides_budgets` is true if the administrator lets guarantees override disruption budgets.
    """

    listener: OutcomeReporter
    timing: Timing
    gang_backoff: GangBackoff
    may_evict: Callable[[], bool]
    max_grace_s: int | None = None
    overrides_budgets: bool = False


class Evictor:
    """Evicts pods on a cluster while `run` is active."""

    def __init__(
        self,
        api: Client,
        cache: ClusterCache,
        writes: WriteQueue[Ref, Write],
        context: EvictorContext,
    ) -> None:
        """`writes` is a queue only for nominations: no other write may delay nominations."""
        self._api = api
        self._cache = cache
        self._writes = writes
        self._context = context
        self._pending: dict[str, _Pending] = {}
        self._waits: dict[str, _Pending] = {}
        """The evictions that are not sent yet, keyed by task."""
        self._gangs: Mapping[str, Gang] = {}
        """The gangs in the newest snapshot, keyed by gang key."""
        self._taken_ms = 0
        """The time of the newest snapshot, in milliseconds since the Unix epoch."""
        self._reported: set[str] = set()
        """Gangs for which a warning about a waiting eviction was logged."""
        self._has_waits = asyncio.Event()
        self._has_none = asyncio.Event()
        self._has_none.set()
        self._evicted_uids: dict[str, dict[str, str]] = {}
        """UIDs of evicted pods, by gang and pod name; the UIDs are kept while the gang exists."""
        self._outbox: WriteQueue[str, _Pending] = WriteQueue(
            lambda _, pending: self._evict(pending),
            context.timing,
            max_concurrent=MAX_CONCURRENT,
            on_failure=self._handle_failure,
        )

    def carry_out(self, plan: Plan, snapshot: Snapshot) -> None:
        """Start the evictions and nominations of a plan that was made from `snapshot`."""
        nominated: dict[str, set[str]] = {}
        for action in plan.actions:
            if isinstance(action, Nominate):
                nominated.setdefault(action.gang, set()).add(action.node)
        self._gangs, self._taken_ms = snapshot.gang_by_key, snapshot.taken_ms
        for pending in self._pending.values():
            batch = pending.batch
            is_needed = not batch.nodes or not batch.nodes.isdisjoint(
                nominated.get(batch.preemptor, ())
            )
            pending.is_unwanted = not is_needed
        for key in {pending.victim.gang for pending in self._pending.values()}:
            self._spare_unwanted(key)
        for key, text in records(snapshot, plan.actions).items():
            gang = snapshot.gang_by_key[key]
            self._cache.assume_moves(key, text)
            if is_upstream(gang):
                continue  # this scheduler never writes upstream Kubernetes PodGroups
            ref, body = _annotated_ref(gang), {"metadata": {"annotations": {MOVES: text or None}}}
            patch = StatusPatch(ref, body, "status" if gang.is_implicit else "")
            self._writes.enqueue(write_key(ref, "moves"), patch)
        self._write_shuffles(plan, snapshot)
        placed = {a.task for a in plan.actions if isinstance(a, Allocate | Nominate)}
        for action in plan.actions:
            if isinstance(action, Nominate):
                self._nominate(action.task, action.node)
            elif isinstance(action, Allocate):
                # The server rejects a nomination of a bound pod.
                self._writes.discard(pod_ref(action.task))
        for gang in snapshot.gangs:
            for task in gang.tasks:
                if task.nominated_node and task.key not in placed:
                    self._nominate(task.key, "")
        self._begin_all(plan, snapshot, nominated)

    def withdraw(self) -> None:
        """Abandon every eviction that has not been sent."""
        self._outbox.clear()
        self._waits.clear()
        self._has_none.set()
        for pending in tuple(self._pending.values()):
            if not pending.is_sent:
                self._spare(pending, "stood-down")
        self._cache.forget_nominations()

    async def run(self) -> None:
        """Send evictions until cancelled.

        An eviction is sent once its nominations are written and its pod's bind is confirmed.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._outbox.run())
            while True:
                await self._has_waits.wait()
                for task, pending in tuple(self._waits.items()):
                    if self._may_evict(pending):
                        del self._waits[task]
                        self._outbox.enqueue(task, pending)
                if not self._waits:
                    self._reported.clear()
                    self._has_waits.clear()
                    self._has_none.set()
                    continue
                await self._context.timing.sleep(POLL_S)
                for pending in self._waits.values():
                    pending.num_polls += 1

    async def until_idle(self) -> None:
        """Wait until no eviction is waiting or being sent."""
        await self._has_none.wait()
        await self._outbox.until_idle()

    def count_waiting(self) -> Mapping[str, int]:
        """Count the waiting evictions by the awaited event: `nomination`, `bind` or `answer`."""
        found = Counter(self._waits_for(each) or "answer" for each in self._waits.values())
        found["answer"] += len(self._pending) - len(self._waits)
        return found

    # --- withdrawals -----------------------------------------------------------------------------

    def _find_siblings(self, gang: str) -> list[_Pending]:
        return [pending for pending in self._pending.values() if pending.victim.gang == gang]

    def _spare_unwanted(self, gang: str) -> bool:
        """Withdraw a gang's unnecessary evictions, unless the gang falls below its minimum anyway.

        An eviction with an unknown result is not withdrawn, and its task counts as lost. Returns
        whether evictions were withdrawn.
        """
        siblings = self._find_siblings(gang)
        spared = [
            pending
            for pending in siblings
            if pending.is_unwanted
            and not (pending.is_sent or pending.has_failed or pending.batch.is_final)
        ]
        lost = {pending.victim.eviction.task for pending in siblings if pending not in spared}
        if not spared or not all(self._keeps_minimum(pending, lost) for pending in spared):
            return False
        for pending in spared:
            self._spare(pending, "unwanted")
        return True

    def _keeps_minimum(self, pending: _Pending, lost: Collection[str]) -> bool:
        """Return whether a victim's gang, without the tasks `lost`, keeps enough ready tasks.

        Either the remaining tasks satisfy the gang's minimum, or the gang keeps all tasks that were
        ready before the plan.
        """
        gang = self._gangs.get(pending.victim.gang)
        if gang is None:
            return True
        evicted_uids = self._evicted_uids.get(gang.key, {})
        left = []
        for key in (task.key for task in gang.tasks):
            task = self._cache.task(key)
            if task is None or key in lost or not task.status.counts_as_ready:
                continue
            # The watch may not have delivered the deletion of an evicted pod yet.
            is_evicted = evicted_uids.get(key.partition("/")[2]) == task.uid
            if key in self._pending or not is_evicted:
                left.append(task)
        is_whole = pending.batch.ready <= {task.key for task in left}
        return is_whole or not is_below_minimum(gang, left)

    async def _settle(self, pending: _Pending) -> bool:
        """Withdraw or keep an unnecessary eviction; return whether it is no longer pending.

        The decision needs the results of all eviction requests for pods of the gang. The server may
        have executed a failed request, so the pods of failed requests are read.
        """
        gang = pending.victim.gang
        while self._is_current(pending) and pending.is_unwanted and not pending.batch.is_final:
            siblings = [each for each in self._find_siblings(gang) if each.is_unwanted]
            if any(each.is_sent for each in self._find_siblings(gang)):
                await self._context.timing.sleep(POLL_S)
                continue
            failed = next((each for each in siblings if each.has_failed), None)
            if failed is not None:
                pod = await self._read_standing(failed.victim)
                if self._is_current(failed):
                    if pod is None:
                        self._end(failed)
                    failed.has_failed = False
            elif not self._spare_unwanted(gang):
                for each in siblings:
                    each.batch.is_final = True
        return not self._is_current(pending)

    async def _is_withdrawn(self, pending: _Pending) -> bool:
        """Return whether an eviction must no longer be sent, and withdraw such an eviction."""
        pending.is_sent = False
        if await self._settle(pending):
            return True
        if not self._context.may_evict():
            self._spare(pending, "stood-down")
            return True
        return False

    def _is_current(self, pending: _Pending) -> bool:
        return self._pending.get(pending.victim.eviction.task) is pending

    # --- one pod ---------------------------------------------------------------------------------

    def _nominate(self, task: str, node: str) -> None:
        if self._cache.assume_nominated(task, node):
            body = {"status": {"nominatedNodeName": node or None}}
            ref = pod_ref(task)
            self._writes.enqueue(ref, StatusPatch(ref, body, "status"))

    def _annotate_evicted(self, victims: Iterable[Victim], snapshot: Snapshot) -> None:
        """Annotate PodGroups with their evicted pods, which job controllers do not count as failed.

        A job controller can read the annotation even after the evicted pods are deleted.
        """
        for key in [key for key in self._evicted_uids if key not in snapshot.gang_by_key]:
            del self._evicted_uids[key]
        marked: dict[str, Gang] = {}
        for victim in victims:
            gang = snapshot.gang_by_key.get(victim.gang)
            if gang is not None:
                self._evicted_uids.setdefault(gang.key, {})[victim.ref.name] = victim.uid
                marked[gang.key] = gang
        for gang in marked.values():
            if not (gang.is_implicit or is_upstream(gang)):
                uids = self._evicted_uids[gang.key]
                known = {task.key.partition("/")[2]: task.uid for task in gang.tasks}
                for name in [name for name in uids if known.get(name, uids[name]) != uids[name]]:
                    del uids[name]  # a new pod has the same name
                self._write_evicted(Ref(POD_GROUP, gang.namespace, gang.name), uids)

    def _unannotate_evicted(self, victim: Victim) -> None:
        """Update the annotation about evicted pods after an eviction failed or was withdrawn."""
        uids, group = self._evicted_uids.get(victim.gang, {}), self._cache.group(victim.gang)
        if uids.get(victim.ref.name) != victim.uid:
            return
        del uids[victim.ref.name]
        if group is not None:
            self._write_evicted(Ref(POD_GROUP, group.meta.namespace, group.meta.name), uids)

    def _write_evicted(self, ref: Ref, uids: Mapping[str, str]) -> None:
        text = " ".join(f"{name}={uid}" for name, uid in sorted(uids.items()))
        body = {"metadata": {"annotations": {EVICTED: text or None}}}
        self._writes.enqueue(write_key(ref, "evicted"), StatusPatch(ref, body, ""))

    def _write_shuffles(self, plan: Plan, snapshot: Snapshot) -> None:
        """Annotate gangs with the times at which plugins moved their pods."""
        moved = [a for a in plan.actions if isinstance(a, Evict) and a.plugin]
        pairs = [(self._cache.task(action.task), action.plugin) for action in moved]
        distinct = dict.fromkeys((task.gang, plugin) for task, plugin in pairs if task is not None)
        for key, plugin in distinct:
            gang = snapshot.gang_by_key[key]
            if is_upstream(gang) or gang.is_implicit:
                continue
            ref = Ref(POD_GROUP, gang.namespace, gang.name)
            body = {"metadata": {"annotations": shuffle_annotation(plugin, snapshot.taken_ms)}}
            write = StatusPatch(ref, body, "")
            self._writes.enqueue(write_key(ref, f"shuffled by {plugin}"), write)

    # --- evictions -------------------------------------------------------------------------------

    def _begin_all(self, plan: Plan, snapshot: Snapshot, nominated: Mapping[str, set[str]]) -> None:
        begun: list[Victim] = []
        for action in plan.actions:
            if not isinstance(action, Evict):
                continue
            if action.plugin:
                self._cache.record_shuffle(action.plugin, snapshot.taken_ms)
            task = self._cache.task(action.task)
            uid = self._cache.assume_evicted(action.task, action.node)
            if uid is not None:
                begun.append(Victim(action, uid, "" if task is None else task.gang))
        self._annotate_evicted(begun, snapshot)
        nominations: dict[str, list[Ref]] = {}
        for action in plan.actions:
            if isinstance(action, Nominate):
                nominations.setdefault(action.gang, []).append(pod_ref(action.task))
        batches = _batches(begun, snapshot, nominated)
        overrides: dict[str, _Override] = {}
        if begun and self._context.overrides_budgets:
            reclaims = GuaranteedReclaims(World(limit_budgets(snapshot)[0], plan.actions))
            for key, queue in reclaims.find_reclaims().items():
                budgets = tuple(budget.key for budget, keys in reclaims.covered if key in keys)
                overrides[key] = _Override(queue, budgets, snapshot.taken_ms)
        for victim in begun:
            after = list(nominations.get(victim.eviction.preemptor, ()))
            for key, what in ((victim.gang, "evicted"), (victim.eviction.preemptor, "moves")):
                gang = snapshot.gang_by_key.get(key)
                if gang is not None:
                    after.append(write_key(_annotated_ref(gang), what))
            key = victim.eviction.task
            pending = _Pending(victim, batches[key], tuple(after), overrides.get(key))
            self._pending[key] = pending
            self._waits[key] = pending
        if begun:
            self._has_none.clear()
            self._has_waits.set()

    def _may_evict(self, pending: _Pending) -> bool:
        """Return whether a waiting eviction may be sent; log a warning if it waits long."""
        reason = self._waits_for(pending)
        if not reason:
            return True
        gang = pending.batch.preemptor or pending.victim.gang
        if reason == "nomination" and pending.waited_s >= PATIENCE_S:
            log.warning(
                "eviction of %s is sent before its nominations are written: gang=%s waited=%.0fs",
                pending.victim.eviction.task,
                gang,
                pending.waited_s,
            )
            return True
        if pending.waited_s >= REPORT_S and gang not in self._reported:
            self._reported.add(gang)
            missing = [str(key) for key in pending.after if not self._writes.is_written(key)]
            log.warning(
                "eviction of %s waits: for=%s gang=%s unwritten=%s",
                pending.victim.eviction.task,
                reason,
                gang,
                ", ".join(missing[:3]) or "none",
            )
        return False

    def _waits_for(self, pending: _Pending) -> str:
        """Return what an eviction waits for: `nomination`, `bind`, or nothing (an empty string).

        If a pod is evicted before its bind is confirmed, it may be deleted without ever running.
        """
        if not all(map(self._writes.is_written, pending.after)):
            return "nomination"
        return "bind" if self._cache.awaits_bind(pending.victim.eviction.task) else ""

    async def _evict(self, pending: _Pending) -> None:
        victim, task = pending.victim, pending.victim.eviction.task
        if not self._is_current(pending) or await self._is_withdrawn(pending):
            return
        known = self._cache.task(task)
        if known is None or known.uid != victim.uid or not known.status.is_standing:
            self._end(pending)
            return
        try:
            await self._send_eviction(pending, self._cache.pod_version(task))
        except TooMany as e:
            raise Rejected(e.code, e.reason, e.message) from e
        finally:
            pending.is_sent = False

    async def _send_eviction(self, pending: _Pending, version: str) -> None:
        """Evict a pod of the given resource version; after a conflict, use its current version."""
        victim = pending.victim
        ref, num_conflicts = victim.ref, 0
        max_s = self._context.max_grace_s
        is_slow = max_s is not None and self._cache.grace_s(victim.eviction.task) > max_s
        grace_s = max_s if is_slow else None
        while True:
            pending.is_sent = True
            try:
                try:
                    await self._api.evict(
                        ref.namespace, ref.name, victim.uid, version, grace_s=grace_s
                    )
                except (TooMany, ServerFault) as refusal:
                    is_of_budget = (
                        _BUDGET_CAUSE in refusal.cause_reasons
                        if isinstance(refusal, TooMany)
                        else _SEVERAL_BUDGETS in refusal.message
                    )
                    if pending.override is None or not is_of_budget:
                        raise
                    if await self._is_withdrawn(pending):
                        return
                    pending.is_sent = True
                    deleted = await self._delete(pending, version, grace_s, refusal)
                    if deleted is None:
                        self._spare(pending, "stood-down")
                        return
                    victim = deleted
            except NotFound:
                self._end(pending)
                return
            except Conflict:
                num_conflicts += 1
                if num_conflicts > CONFLICTS:
                    raise
            except KubeError:
                pending.has_failed = True
                raise
            else:
                self._pending.pop(victim.eviction.task, None)
                self._context.listener.evicted(victim)
                return
            pod = await self._read_standing(victim)
            if pod is None:
                self._end(pending)
                return
            if await self._is_withdrawn(pending):
                return
            version = version_of(pod)

    async def _delete(
        self, pending: _Pending, version: str, grace_s: int | None, refusal: ApiError
    ) -> Victim | None:
        """Delete a pod that a disruption budget protects, if its resource version is `version`.

        As in an eviction, the condition DisruptionTarget is set first, so that job controllers do
        not count the pod as failed. Returns the victim with the overridden budgets, or None if this
        process no longer leads.
        """
        victim, override = pending.victim, pending.override
        assert override is not None  # noqa: S101  the caller has checked `override`
        pod = await self._api.read(victim.ref)
        if not self._context.may_evict():
            return None
        text = override.describe(victim.ref.namespace, refusal)
        # The patch and the deletion fail if the pod has changed since it was chosen as a victim.
        known = {"uid": victim.uid, "resourceVersion": version or version_of(pod)}
        self._writes.discard(write_key(victim.ref, "disruption"))
        pending.is_marked = True
        written = await mark_disruption(self._api, victim.ref, pod, known, text, override.taken_ms)
        if not self._context.may_evict():
            return None
        try:
            await self._api.delete(
                victim.ref, victim.uid, grace_s=grace_s, version=version_of(written)
            )
        except Forbidden as e:
            problem = f"{text}, but the scheduler may not delete pods: {e.message}"
            raise Forbidden(e.code, e.reason, problem) from e
        log.warning(
            "%s deleted despite its budgets: %s gang=%s", victim.ref, text, pending.batch.preemptor
        )
        return replace(victim, overridden=text)

    async def _read_standing(self, victim: Victim) -> Raw | None:
        """Read a victim's pod; return None if the pod has finished or is terminating."""
        try:
            pod = await self._api.read(victim.ref)
        except NotFound:
            return None
        is_victim = pod["metadata"].get("uid") == victim.uid
        return pod if is_victim and is_standing(pod) else None

    def _handle_failure(self, task: str, error: KubeError) -> None:
        pending = self._pending.pop(task, None)
        if pending is None:
            return
        victim, eviction = pending.victim, pending.victim.eviction
        self._cache.forget_eviction(task)
        self._unannotate_evicted(victim)
        self._unmark(pending, f"the scheduler could not delete the pod: {error}")
        message = f"pod {eviction.task} could not be evicted from {eviction.node}: {error}"
        if eviction.preemptor:
            self._context.gang_backoff.fail(eviction.preemptor, ReasonCode.NOT_EVICTED, message)
        self._context.listener.not_evicted(victim, error)

    def _end(self, pending: _Pending) -> None:
        """Handle a victim that has finished, or whose eviction succeeded without a response."""
        if pending.has_failed:
            self._pending.pop(pending.victim.eviction.task, None)
            self._context.listener.evicted(pending.victim)
        else:
            self._spare(pending, "ended")

    def _spare(self, pending: _Pending, why: str) -> None:
        task = pending.victim.eviction.task
        if self._pending.get(task) is pending:
            del self._pending[task]
            self._waits.pop(task, None)
            self._outbox.discard(task)
        self._cache.forget_eviction(task)
        self._unannotate_evicted(pending.victim)
        self._unmark(pending, "the scheduler has withdrawn the deletion of the pod")
        self._context.listener.spared(pending.victim, why)

    def _unmark(self, pending: _Pending, message: str) -> None:
        """Reset the condition DisruptionTarget of a pod that is not deleted.

        If this process no longer leads, nothing is written. Kubernetes resets the condition after
        two minutes.
        """
        if pending.is_marked:
            victim = pending.victim
            reset = DisruptionReset(victim.ref, victim.uid, self._taken_ms, message)
            self._writes.enqueue(write_key(victim.ref, "disruption"), reset)


def _batches(
    victims: Iterable[Victim], snapshot: Snapshot, nominated: Mapping[str, set[str]]
) -> dict[str, _Batch]:
    """Group the victims into batches; return the batch of each victim, keyed by task."""
    by_gang: dict[tuple[str, str], list[Victim]] = {}
    for victim in victims:
        by_gang.setdefault((victim.gang, victim.eviction.preemptor), []).append(victim)
    found: dict[str, _Batch] = {}
    for (key, preemptor), members in by_gang.items():
        gang, nodes = snapshot.gang_by_key.get(key), nominated.get(preemptor, set())
        tasks = () if gang is None else gang.tasks
        ready = frozenset(t.key for t in tasks if t.status.counts_as_ready)
        standing = sum(t.status.is_standing for t in tasks)
        is_whole = gang is not None and standing - len(members) < gang.min_member
        for group in [members] if is_whole else [[member] for member in members]:
            emptied = {v.eviction.node for v in group if not v.eviction.to}
            batch = _Batch(preemptor, frozenset(emptied & nodes or nodes), ready)
            found.update((v.eviction.task, batch) for v in group)
    return found


def _annotated_ref(gang: Gang) -> Ref:
    """Return the object that has a gang's annotations: its PodGroup or its bare pod."""
    is_bare = gang.is_implicit and gang.tasks
    return pod_ref(gang.tasks[0].key) if is_bare else Ref(POD_GROUP, gang.namespace, gang.name)
