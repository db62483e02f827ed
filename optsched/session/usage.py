"""Track the usage history of queues across sessions, for policies that read it.

This module does no I/O and does not read the current time. Each queue's usage is computed up to the
time of the snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.amounts import Usage, total
from optsched.plugins.verification.world import add_into

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.cluster.snapshot import Gang, Snapshot

WRITTEN_EVERY_MS: Final = 30_000
"""Minimum time between two writes of a queue's usage, in milliseconds."""

MATTERS: Final = 0.01
"""A usage is written if it differs from the decayed written usage by more than this fraction."""


class UsageKeeper:
    """The tracked usage of each queue.

    Between two snapshots, each queue is assumed to hold the resources of the earlier snapshot.
    """

    def __init__(self) -> None:
        self._half_life_ms = 0
        self._usage: dict[str, Usage] = {}
        self._held: dict[str, dict[str, int]] = {}
        self._written: dict[str, Usage] = {}
        self._shares: dict[str, tuple[Gang, dict[str, int]]] = {}

    def noted(self, snapshot: Snapshot, half_life_ms: int) -> Snapshot:
        """Return the snapshot with the usage history of its queues up to the snapshot's time.

        Without a half-life, the snapshot is returned unchanged. An untracked queue starts with the
        usage in the snapshot, and is assumed to have held its current resources since this usage
        was written.
        """
        if not half_life_ms:
            self._usage.clear()
            return snapshot
        self._half_life_ms = half_life_ms
        now_ms = snapshot.taken_ms
        # The resources that each queue's own gangs hold; the sums of unchanged gangs are reused.
        held: dict[str, dict[str, int]] = {q.name: {} for q in snapshot.queues}
        before, self._shares = self._shares, {}
        for gang in snapshot.gangs:
            stored = before.get(gang.key)
            if stored is not None and stored[0] is gang:
                share = stored[1]
            else:
                share = total(t.shape.request for t in gang.tasks if t.status.counts_for_queue)
            self._shares[gang.key] = gang, share
            if gang.queue in held:
                add_into(held[gang.queue], share)
        for queue in snapshot.queues:
            if queue.name not in self._usage:
                known = snapshot.usage.get(queue.name)
                self._usage[queue.name] = known or Usage(at_ms=now_ms)
                self._held[queue.name] = held[queue.name]
                if known is not None:
                    self._written[queue.name] = known
        self._usage = {
            q.name: self._usage[q.name].advanced(self._held[q.name], now_ms, half_life_ms)
            for q in snapshot.queues
        }
        for name in self._written.keys() - self._usage.keys():
            del self._written[name]
        self._held = held
        return replace(snapshot, usage=dict(self._usage))

    def to_write(self, now_ms: int, *, once_settled: bool = False) -> Iterator[tuple[str, Usage]]:
        """Yield the (queue, usage) pairs to write now, and record them as written.

        If `once_settled` is True, `WRITTEN_EVERY_MS` does not apply.
        """
        for name, usage in self._usage.items():
            usage_now = usage.advanced(self._held[name], now_ms, self._half_life_ms)
            written = self._written.get(name)
            if written is None:
                is_due, faded = True, {}
            else:
                is_due = once_settled or now_ms - written.at_ms >= WRITTEN_EVERY_MS
                faded = dict(written.advanced({}, now_ms, self._half_life_ms).seconds)
            if is_due and any(
                abs(amount - faded.get(resource, 0.0)) > MATTERS * amount
                for resource, amount in usage_now.seconds
            ):
                self._written[name] = usage_now
                yield name, usage_now
