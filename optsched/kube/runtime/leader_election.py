"""Leader election on a Lease, as in client-go.

By its own clock, a leader stops leading `renew_s` seconds after it sent its last successful
renewal. Other candidates wait `duration_s` seconds after they observe the leader's renewal.
Therefore no candidate can lead before the previous leader has stopped, even if clocks differ,
processes hang or the network fails.

`kubernetes.aio.leaderelection` is not used: it never releases a lease, and its renewals may hang
longer than their deadline. `kubernetes.aio.leaderelection` also reads the wall clock, writes local
times as UTC and fails if a connection is refused.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from optsched.api.json_fields import spec_of
from optsched.api.kinds import LEASE, Ref
from optsched.kube.client.errors import Conflict, KubeError, NotFound, Unreachable
from optsched.kube.runtime.lifecycle import identity, wait_at_most
from optsched.units import format_micro_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw
    from optsched.kube.runtime.lifecycle import Outage
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

_NEVER: Final = -math.inf
RELEASE_CONFLICTS: Final = 3
"""Maximum number of write conflicts that are retried when a lease is released."""

log = logging.getLogger(__name__)


class Leadership(Protocol):
    """Whether this process leads, and the number of its current term."""

    @property
    def is_leading(self) -> bool:
        """Whether this process leads; checked before every write to the cluster."""

    @property
    def term(self) -> int:
        """A different number for each term in which this process leads; 0 if it does not lead."""


class AlwaysLeading:
    """The leadership of a process that runs without leader election."""

    is_leading = True
    term = 1


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The duration of a lease, the deadline for a renewal, and the interval between renewals.

    The defaults are Volcano's. Raises ValueError unless duration > deadline > interval.
    """

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration_s > self.renew_s > self.retry_s > 0:
            raise ValueError(
                f"lease duration {self.duration_s:g} s, renew deadline {self.renew_s:g} s, retry "
                f"period {self.retry_s:g} s: each has to be longer than the next"
            )


@dataclass(frozen=True, slots=True)
class Election:
    """The lease for which several processes compete."""

    namespace: str
    name: str
    times: LeaseTimes = field(default_factory=LeaseTimes)


class Elector:
    """A candidate that acquires the lease and renews it while `run` is active."""

    def __init__(
        self,
        api: Client,
        election: Election,
        identity: str,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ref = Ref(LEASE, election.namespace, election.name)
        self._identity = identity
        self._times = election.times
        self._clock = clock
        self._timing = timing
        self._leads_until = _NEVER
        self._num_terms = 0
        self._lease: Raw = {}
        self._seen_version = ""
        self._seen_at = 0.0

    @property
    def is_leading(self) -> bool:
        """Whether this process leads; no other process can lead at the same time."""
        return self._clock.monotonic() < self._leads_until

    @property
    def term(self) -> int:
        """Number of terms as leader, including the current term; 0 if this process does not lead.

        A late renewal starts another term, because other processes may have led in the meantime.
        """
        return self._num_terms if self.is_leading else 0

    @property
    def holder(self) -> str:
        """The identity that held the lease when it was last read."""
        return str(spec_of(self._lease).get("holderIdentity") or "")

    async def run(
        self,
        on_failure: Callable[[KubeError], None],
        on_success: Callable[[], None] = lambda: None,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        """Acquire and renew the lease until cancelled.

        `on_failure` is called on the first of consecutive failures, and `on_success` on the first
        success after failures. `on_lead` is called when this process becomes the leader.
        """
        has_failed = False
        while True:
            began = self._clock.monotonic()
            known_term = self.term
            try:
                await self.step()
            except KubeError as e:
                if not has_failed:
                    on_failure(e)
                has_failed = True
            else:
                if has_failed:
                    on_success()
                has_failed = False
                if self.term not in (0, known_term):
                    on_lead()
            spread_s = self._times.retry_s * (0.8 + 0.4 * self._timing.chance())
            await self._timing.sleep(max(0.0, began + spread_s - self._clock.monotonic()))

    async def step(self) -> None:
        """Try once to acquire or renew the lease; raises KubeError if a request fails."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._times.renew_s / 2):
                leads = await self._acquire_or_renew()
        except TimeoutError as e:
            self._lease = {}
            raise Unreachable(f"{self._ref}: no answer in time") from e
        except KubeError:
            # The lease may have changed since it was read, so the next attempt reads it again.
            self._lease = {}
            raise
        if leads and not self.is_leading:
            self._num_terms += 1
        self._leads_until = began + self._times.renew_s if leads else _NEVER

    async def release(self) -> None:
        """Release the lease, so that another process can lead; `run` must have returned."""
        was_leading, self._leads_until = self.is_leading, _NEVER
        if not was_leading:
            return
        num_conflicts = 0
        while True:
            # After a failed renewal, the lease may have changed, so it is read again.
            self._lease = self._lease or await self._api.read(self._ref)
            if self.holder != self._identity:
                return
            try:
                self._lease = await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
            except Conflict:
                # The server executed a renewal that was cancelled before its response arrived.
                self._lease = {}
                num_conflicts += 1
                if num_conflicts > RELEASE_CONFLICTS:
                    raise
            else:
                return

    async def _acquire_or_renew(self) -> bool:
        """Acquire or renew the lease if possible; return whether this process holds it."""
        if not (self.is_leading and self._lease):
            try:
                self._lease = await self._api.read(self._ref)
            except NotFound:
                body = {
                    "apiVersion": LEASE.api_version,
                    "kind": LEASE.kind,
                    "metadata": {"name": self._ref.name, "namespace": self._ref.namespace},
                    "spec": self._claim({}),
                }
                self._lease = await self._api.create(self._ref, body)
                return True
        if self.holder not in ("", self._identity):
            version = str(self._lease["metadata"].get("resourceVersion"))
            if version != self._seen_version:
                self._seen_version, self._seen_at = version, self._clock.monotonic()
            duration_s = spec_of(self._lease).get("leaseDurationSeconds") or self._times.duration_s
            if self._clock.monotonic() - self._seen_at <= duration_s:
                return False
        self._lease = await self._write(self._claim(spec_of(self._lease)))
        return True

    def _claim(self, spec: Mapping[str, Any]) -> Raw:
        """Return a lease spec with this process as holder; count a transition if it is new."""
        now = format_micro_time(self._clock.now_ms())
        claim = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._times.duration_s),
            "renewTime": now,
        }
        if spec.get("holderIdentity") == self._identity:
            return claim
        changes = spec.get("leaseTransitions") or 0
        return {**claim, "acquireTime": now, "leaseTransitions": changes + 1 if spec else 0}

    async def _write(self, spec: Raw) -> Raw:
        """Write a spec unless the lease has changed since it was read; return the new lease."""
        version = self._lease["metadata"].get("resourceVersion")
        precondition = {"resourceVersion": version} if version else {}
        return await self._api.patch(self._ref, {"metadata": precondition, "spec": spec})


class ProcessElection:
    """The leader election of one process; without an election, the process always leads.

    `leadership` holds whether this process leads, and the number of its current term.
    `is_contested` is true if other processes may lead.
    """

    def __init__(
        self,
        api: Client,
        election: Election | None,
        clock: Clock,
        timing: Timing,
        outage: Outage,
    ) -> None:
        """`election` is None if this process is the only replica."""
        self.is_contested = election is not None
        self._outage = outage
        self._elector: Elector | None = None
        if election is not None:
            self._elector = Elector(api, election, identity(), clock, timing)
        self.leadership: Leadership = self._elector or AlwaysLeading()

    async def run(self, on_lead: Callable[[], None] = lambda: None) -> None:
        """Acquire and renew the lease until cancelled."""

        def report_failure(error: KubeError) -> None:
            level = logging.WARNING if self._outage.record_failure(LEASE, error) else logging.INFO
            log.log(level, "the lease was not acquired or renewed: %s", error)

        if self._elector is not None:
            await self._elector.run(
                report_failure, lambda: self._outage.record_success(LEASE), on_lead
            )

    async def resign(self, max_s: float) -> None:
        """Release the lease, so that another process can lead; give up after `max_s` seconds."""
        if self._elector is None:
            return
        try:
            await wait_at_most(max_s, self._elector.release())
        except KubeError as e:
            log.warning("the lease was not released: %s", e)
