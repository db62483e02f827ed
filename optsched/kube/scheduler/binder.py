"""Bind the tasks of a plan to their nodes: binds start in the plan's order and run concurrently.

Planned binds are assumed immediately, so later sessions do not allocate the same resources. The
server's response confirms the bind or makes the task pending again. A bind request that gets no
response is repeated. The server rejects a second bind of a pod with a conflict, so the binder then
reads the pod to find its node.

A pod's GPU shares and NUMA cells are recorded in a pod condition before the bind. Users may change
annotations, but not `pods/status`.

If any volume claim of a gang is not bound to a volume yet, all binds of the gang wait until its
claims are bound. A gang does not wait for the claims of other gangs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.api.wellknown import ADMITTED_QUEUE
from optsched.cluster.decisions import Allocate
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import QueueGate
from optsched.formats.codec.gpu_shares import VGPU_IDS, gpu_bind_annotations
from optsched.formats.codec.numatopologies import decision_marks
from optsched.formats.snapshots.bound_devices import device_message
from optsched.kube.cache.cluster_cache import find_closures
from optsched.kube.client.errors import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    ServerFault,
    TooMany,
    Unreachable,
)
from optsched.kube.runtime.timing import Backoff, BackoffSteps
from optsched.kube.scheduler.bind_preparation import (
    ClaimReserver,
    NodeLocks,
    open_gate,
    record_devices,
)
from optsched.kube.scheduler.outcomes import Bind, Failure
from optsched.kube.scheduler.volume_binder import Stopped, VolumeBinder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.timing import Timing
    from optsched.kube.scheduler.outcomes import OutcomeReporter
    from optsched.kube.scheduler.volume_binder import PendingVolumes
    from optsched.session.ports import Clock

MAX_CONCURRENT: Final = 64
RETRIES: Final = BackoffSteps(first_s=0.1, max_s=2.0)
FAULTS: Final = 5
"""Number of server faults (5xx) after which a bind fails."""


@dataclass(frozen=True, slots=True)
class BinderContext:
    """Dependencies of a binder.

    `may_bind` returns whether this process still leads; it is called before every request.
    `locks_nodes` returns whether pods with vGPUs are bound sequentially on each node
    (`deviceshare.NodeLockEnable`). `patience_s` returns the number of seconds for which pods wait
    for their volumes (`volumebinding.bindTimeoutSeconds`), or None if the policy has no volume
    plugin.
    """

    clock: Clock
    listener: OutcomeReporter
    may_bind: Callable[[], bool]
    timing: Timing
    locks_nodes: Callable[[], bool] = lambda: False
    patience_s: Callable[[], float | None] = lambda: 600.0


@dataclass(slots=True)
class _Attempt:
    """The binds of one gang in one plan."""

    gang: str
    left: int
    failure: Failure | None = None


@dataclass(slots=True)
class _Job:
    bind: Bind
    attempt: _Attempt
    planned_s: float


class LiveBinder:
    """Binds tasks on a cluster while `run` is active."""

    def __init__(self, api: Client, cache: ClusterCache, context: BinderContext) -> None:
        self._api = api
        self._cache = cache
        self._context = context
        self._queue: deque[_Job] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_under_way = 0
        self._reserver = ClaimReserver(
            api, cache.claim_kind, cache.device_class, cache.record_stored_devices
        )
        self._locks = NodeLocks(api, context.clock, context.timing)
        self._claims = VolumeBinder(
            api, cache, context.clock, context.timing, context.may_bind, context.patience_s
        )
        self._awaiting_volumes: dict[int, tuple[list[_Job], PendingVolumes]] = {}
        self._has_new_gangs = asyncio.Event()
        self._last_number = 0
        self.gang_backoff = GangBackoff(cache, context.clock)

    # --- public ----------------------------------------------------------------------------------

    def carry_out(self, plan: Plan, snapshot: Snapshot) -> None:
        """Start to bind the tasks that a plan allocates, gang by gang in the plan's order.

        A gang that has changed since the snapshot is skipped; the next session schedules it again.
        The plan was made from `snapshot`. No pod is bound to a node that has stopped accepting pods
        since the snapshot.
        """
        by_gang: dict[str, list[Allocate]] = {}
        for action in plan.actions:
            if isinstance(action, Allocate):
                by_gang.setdefault(action.gang, []).append(action)
        for gang, allocated in by_gang.items():
            if all(self._cache.can_assume(a.task, a.node) for a in allocated):
                self._start_gang(gang, allocated, snapshot.node_by_name)

    @property
    def num_waiting(self) -> int:
        """The number of binds that are queued, in progress or waiting for volumes."""
        num_awaiting = sum(len(jobs) for jobs, _ in self._awaiting_volumes.values())
        return len(self._queue) + self._num_under_way + num_awaiting

    async def until_idle(self) -> None:
        """Wait until all binds have finished, except binds that wait for volumes."""
        await self._idle.wait()

    def withdraw(self) -> None:
        """Abandon every bind that has not been started."""
        while self._queue:
            self._abandon(self._queue.popleft())
        for number in tuple(self._awaiting_volumes):
            self._abandon_gang(number)
        self._check_idle()

    async def run(self) -> None:
        """Execute binds until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(MAX_CONCURRENT):
                workers.create_task(self._serve())
            begun = 0
            while True:
                await self._has_new_gangs.wait()
                self._has_new_gangs.clear()
                for number in [n for n in self._awaiting_volumes if n > begun]:
                    begun = number
                    workers.create_task(self._provision(number))

    # --- gangs -----------------------------------------------------------------------------------

    def _start_gang(
        self, gang: str, allocated: Sequence[Allocate], planned: Mapping[str, Node]
    ) -> None:
        pending = self._claims.find_pending(allocated)
        if pending is None:
            return
        attempt, now = _Attempt(gang, len(allocated)), self._context.clock.monotonic()
        jobs: list[_Job] = []
        for action in allocated:
            task = self._cache.task(action.task)
            is_gated = task is not None and task.gate is QueueGate.CLOSED
            uid = self._cache.assume_bound(
                action.task, action.node, action.shared_gpus, action.devices, action.numa
            )
            annotations = gpu_bind_annotations(
                action.shared_gpus, action.node, self._context.clock.now_ms()
            )
            annotations |= decision_marks(action.numa)
            if queue := self._cache.queue_of(gang):
                annotations[ADMITTED_QUEUE] = queue
            locks = VGPU_IDS in annotations and self._context.locks_nodes()
            devices = action.devices
            node = planned.get(action.node)
            closures = frozenset[str]() if node is None else find_closures(node)
            record = device_message(action.node, action.shared_gpus, action.numa)
            bind = Bind(
                action.task,
                uid,
                action.node,
                gang,
                annotations,
                devices,
                locks,
                is_gated,
                closures,
                record,
            )
            jobs.append(_Job(bind, attempt, now))
        if pending.used_on:
            self._last_number += 1
            self._awaiting_volumes[self._last_number] = (jobs, pending)
            self._has_new_gangs.set()
        else:
            self._enqueue(jobs)

    def _enqueue(self, jobs: Sequence[_Job]) -> None:
        self._queue.extend(jobs)
        self._idle.clear()
        self._work.set()

    # --- volumes ---------------------------------------------------------------------------------

    async def _provision(self, number: int) -> None:
        """Wait until a gang's volume claims are bound, then queue the binds of its pods."""
        if number not in self._awaiting_volumes:
            return
        jobs, pending = self._awaiting_volumes[number]
        try:
            refusal = await self._claims.provision(pending)
        except Stopped:
            self._abandon_gang(number)
            return
        if self._awaiting_volumes.pop(number, None) is None:
            return
        if refusal is None:
            self._enqueue(jobs)
            return
        task = pending.task_of[refusal.claim]
        jobs.sort(key=lambda job: job.bind.task != task)
        self._fail(jobs[0], Failure("VolumeNotBound", refusal.message))
        self._settle(jobs[0].attempt)
        for job in jobs[1:]:
            self._abandon(job)

    def _abandon_gang(self, number: int) -> None:
        """Abandon the binds of a gang that waits for its volume claims."""
        jobs, pending = self._awaiting_volumes.pop(number, ((), None))
        for job in jobs:
            self._abandon(job)
        if pending is not None:
            self._claims.cancel(pending)

    # --- one bind --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            while not self._queue:
                self._work.clear()
                await self._work.wait()
            job = self._queue.popleft()
            self._num_under_way += 1
            try:
                await self._run_job(job)
            finally:
                self._num_under_way -= 1
                self._check_idle()

    def _check_idle(self) -> None:
        if not self._queue and not self._num_under_way:
            self._idle.set()

    async def _run_job(self, job: _Job) -> None:
        # If one task of a gang cannot be bound, the gang's other tasks are not bound either.
        if job.attempt.failure is not None:
            self._abandon(job)
            return
        bind, held = job.bind, ""
        try:
            if bind.locks:
                held = await self._locks.acquire(bind.node)
            failure = Failure("NodeLocked", held) if held else await self._bind(bind)
            if failure is not None and bind.locks and not held:
                await self._locks.release(bind.node)
        except Stopped:
            self._abandon(job)
            return
        except KubeError as e:
            # Only the request to lock the node raises KubeError; `_bind` and `release` do not.
            failure = _failure(e)
        if failure is None:
            self._context.listener.bound(bind, self._context.clock.monotonic() - job.planned_s)
        else:
            self._fail(job, failure)
            for grant in bind.devices:
                await self._reserver.release(grant, bind.uid)
        self._settle(job.attempt)

    def _abandon(self, job: _Job) -> None:
        self._cache.forget(job.bind.task)
        self._settle(job.attempt)

    def _settle(self, attempt: _Attempt) -> None:
        attempt.left -= 1
        if not attempt.left and attempt.failure is None:
            self.gang_backoff.reset(attempt.gang)

    def _fail(self, job: _Job, failure: Failure) -> None:
        self._cache.forget(job.bind.task)
        self._context.listener.failed(job.bind, failure)
        if job.attempt.failure is not None:
            return
        job.attempt.failure = failure
        message = f"pod {job.bind.task} could not be bound to {job.bind.node}: {failure.message}"
        self.gang_backoff.fail(job.bind.gang, ReasonCode.NOT_BOUND, message)

    async def _bind(self, bind: Bind) -> Failure | None:
        """Bind a task with retries; return None once it is bound, else the failure."""
        backoff = Backoff(RETRIES, self._context.timing.chance)
        may_be_bound = False
        while True:
            failure: Failure | None = None
            retry_after_s: float | None = None
            try:
                await self._send_requests(bind)
                return None
            except _Refused as e:
                failure = e.failure
            except (Unreachable, ServerFault) as e:
                may_be_bound = True
                if isinstance(e, ServerFault) and backoff.failures >= FAULTS:
                    failure = _failure(e)
            except TooMany as e:
                retry_after_s = e.retry_after_s
            except KubeError as e:
                may_be_bound = may_be_bound or isinstance(e, Conflict)
                failure = _failure(e)
            if failure is not None and not may_be_bound:
                return failure
            outcome = None if failure is None else await self._read_outcome(bind, failure)
            if outcome is not None:
                return outcome.failure
            await self._context.timing.sleep(retry_after_s or backoff.next_delay())

    async def _send_requests(self, bind: Bind) -> None:
        """Send the requests of a bind in order; repeating a completed request has no effect."""
        ref = bind.ref
        for grant in bind.devices:
            self._check(bind)
            refusal = await self._reserver.reserve(grant, ref, bind.uid, bind.node)
            if refusal:
                raise _Refused(Failure("ClaimNotReserved", refusal))
        if bind.is_gated:
            self._check(bind)
            await open_gate(self._api, ref, bind.uid)
        if bind.record:
            self._check(bind)
            now_ms = self._context.clock.now_ms()
            await record_devices(self._api, ref, bind.uid, bind.record, now_ms)
        self._check(bind)
        await self._api.bind(ref.namespace, ref.name, bind.uid, bind.node, bind.annotations)

    def _check(self, bind: Bind) -> None:
        """Raise Stopped or _Refused if no further request for the bind may be sent.

        Leadership and the node are checked before each request, because the previous request may
        have taken a long time.
        """
        if not self._context.may_bind():
            raise Stopped
        closures = find_closures(self._cache.find_node(bind.node)) - bind.closures
        if closures:
            message = f"the node is {' and '.join(sorted(closures))} by now"
            raise _Refused(Failure("NodeClosed", message))

    async def _read_outcome(self, bind: Bind, failure: Failure) -> _Outcome | None:
        """Read the pod and return the bind's outcome, or None if the pod cannot be read."""
        try:
            pod = await self._api.read(bind.ref)
        except NotFound as e:
            return _Outcome(_failure(e))
        except KubeError:
            return None
        node = pod.get("spec", {}).get("nodeName") or ""
        if pod["metadata"].get("uid", "") != bind.uid:
            return _Outcome(Failure(failure.reason, "another pod has the same name"))
        if node == bind.node:
            return _Outcome(None)
        if node:
            return _Outcome(Failure(failure.reason, f"the pod is already bound to {node}"))
        return _Outcome(failure)


@dataclass(frozen=True, slots=True)
class _Outcome:
    failure: Failure | None


@dataclass(eq=False)
class _Refused(Exception):
    """Raised if a request for a bind must not be sent or cannot succeed."""

    failure: Failure


def _failure(error: KubeError) -> Failure:
    text = error.message or error.title if isinstance(error, ApiError) else str(error)
    return Failure(error.label, text)


HOLDS: Final = BackoffSteps(first_s=1.0, max_s=60.0)
"""Delays for which a gang is excluded from scheduling, by its number of consecutive failures."""


@dataclass(slots=True)
class _Hold:
    until_s: float = 0.0
    failures: int = 0


class GangBackoff:
    """Excludes a gang from scheduling for some time after its binds, evictions or writes fail."""

    def __init__(self, cache: ClusterCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._held: dict[str, _Hold] = {}

    def fail(self, gang: str, code: ReasonCode, message: str) -> None:
        """Exclude a gang from scheduling for a delay that doubles with each failure."""
        hold = self._held.setdefault(gang, _Hold())
        hold.failures += 1
        pause_s = HOLDS.delay_after(hold.failures)
        hold.until_s = self._clock.monotonic() + pause_s
        self._cache.hold_gang(gang, Reason(code, f"{message}; next attempt in {pause_s:.0f} s"))

    def reset(self, gang: str) -> None:
        """Reset a gang's backoff after a successful attempt to bind it."""
        if self._held.pop(gang, None) is not None:
            self._cache.release_gang(gang)

    def release_due(self) -> None:
        """Allow gangs to be scheduled again once their backoff delay has passed."""
        now = self._clock.monotonic()
        for gang, hold in tuple(self._held.items()):
            if hold.until_s <= now:
                self._cache.release_gang(gang)
            if hold.until_s + HOLDS.max_s <= now:
                del self._held[gang]
