"""Carries out what a plan takes away: evicts victims, and says whose room it will be.

What only moves is recorded with the gang that it moves for (see `domain.moves`), before it goes.
Victims count as leaving, and the tasks that wait for their room as nominated, from the moment they
are planned. Nominations are written first: a scheduler that is started in between finds them in
`status.nominatedNodeName` of the pods. Pods are evicted through the eviction API, so that the
server itself has the last word on disruption budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from optsched.api.kinds import POD_GROUP
from optsched.api.wellknown import EVICTED
from optsched.domain.decisions import Allocate, Evict, Nominate
from optsched.domain.moves import MOVES, records
from optsched.domain.reasons import ReasonCode
from optsched.formats.shuffled import shuffle_mark
from optsched.formats.upstream import is_upstream
from optsched.kube.errors import Conflict, KubeError, NotFound, Rejected, TooMany
from optsched.kube.outbox import Outbox
from optsched.kube.ports import Ref, pod_ref
from optsched.kube.status import StatusPatch
from optsched.kube.writes import beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.domain.cluster import Gang, Snapshot
    from optsched.domain.decisions import Plan
    from optsched.kube.cache import ClusterCache
    from optsched.kube.holds import Holds
    from optsched.kube.ports import Api
    from optsched.kube.waiting import Waiting
    from optsched.kube.writes import Write

AT_ONCE: Final = 16

UNTIL_BOUND_S: Final = 0.05
"""How often it is looked whether the bind of a victim has been told of."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is to go, and for whom; its gang, for the pod may be gone when that is asked."""

    eviction: Evict
    uid: str
    gang: str = ""

    @property
    def ref(self) -> Ref:
        """The pod."""
        return pod_ref(self.eviction.task)


class EvictionListener(Protocol):
    """Is told how evictions end."""

    def evicted(self, victim: Victim) -> None:
        """A pod has been told to go, or is gone."""

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """A pod stays."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an evictor works with.

    Attributes
    ----------
    holds
        Gangs that are left alone for a while; shared with the binder.
    may_evict
        Whether this process still leads; asked before every request.

    """

    listener: EvictionListener
    waiting: Waiting
    holds: Holds
    may_evict: Callable[[], bool]


class Evictor:
    """Evicts on a cluster; `run` has to be running for anything to happen."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        writes: Outbox[Ref, Write],
        around: Surroundings,
    ) -> None:
        self._api = api
        self._cache = cache
        self._writes = writes
        self._around = around
        self._victims: dict[str, Victim] = {}
        self._marks: dict[str, dict[str, str]] = {}
        """UIDs of pods that were evicted, by name, by gang; as long as the gangs are there."""
        self._outbox: Outbox[str, Victim] = Outbox(
            lambda _, victim: self._evict(victim),
            around.waiting,
            at_once=AT_ONCE,
            on_failure=self._failed,
        )

    def carry_out(self, plan: Plan, snapshot: Snapshot) -> None:
        """Begin to do what a plan says beside binding; snapshot: what it was made from."""
        self._write_down(plan, snapshot)
        seated = {a.gang for a in plan.actions if isinstance(a, Allocate | Nominate)}
        for action in plan.actions:
            if isinstance(action, Nominate):
                self._nominate(action.task, action.node)
        for gang in snapshot.gangs:
            if gang.key not in seated:
                for task in gang.tasks:
                    if task.nominated_node:
                        self._nominate(task.key, "")
        evictions = (action for action in plan.actions if isinstance(action, Evict))
        self._mark([self._begin(each, snapshot.taken_ms) for each in evictions], snapshot)

    def withdraw(self) -> None:
        """Give up every eviction that has not been asked for yet."""
        self._outbox.clear()
        for task in tuple(self._victims):
            self._cache.assume_staying(task)
        self._victims.clear()
        self._cache.forget_moves()

    async def run(self) -> None:
        """Evict until cancelled."""
        await self._outbox.run()

    async def until_idle(self) -> None:
        """Wait until every eviction has been answered."""
        await self._outbox.until_idle()

    def _write_down(self, plan: Plan, snapshot: Snapshot) -> None:
        """What a scheduler that starts anew has to know of the evictions of a plan."""
        for key, text in records(snapshot, plan.actions).items():
            self._record(snapshot.gang_by_key[key], text)
        for key, plugin in self._shuffled(plan):
            self._note_shuffle(snapshot.gang_by_key[key], plugin, snapshot.taken_ms)

    # --- one pod ---------------------------------------------------------------------------------

    def _nominate(self, task: str, node: str) -> None:
        if self._cache.assume_nominated(task, node):
            body = {"status": {"nominatedNodeName": node or None}}
            ref = pod_ref(task)
            self._writes.put(ref, StatusPatch(ref, body, "status"))

    def _mark(self, victims: list[Victim | None], snapshot: Snapshot) -> None:
        """Note on gangs which of their pods go, so that it is no failure of theirs.

        A job's controller reads it there even if it looks only when the pods are gone.
        """
        for gone in [key for key in self._marks if key not in snapshot.gang_by_key]:
            del self._marks[gone]
        marked: dict[str, Gang] = {}
        for victim in victims:
            gang = None if victim is None else snapshot.gang_by_key.get(victim.gang)
            if victim is not None and gang is not None:
                self._marks.setdefault(gang.key, {})[victim.ref.name] = victim.uid
                marked[gang.key] = gang
        for gang in marked.values():
            if not (gang.is_implicit or is_upstream(gang)):
                self._write_mark(gang)

    def _write_mark(self, gang: Gang) -> None:
        marks = self._marks[gang.key]
        known = {task.key.partition("/")[2]: task.uid for task in gang.tasks}
        for name in [name for name in marks if known.get(name, marks[name]) != marks[name]]:
            del marks[name]  # another pod has the name by now
        text = " ".join(f"{name}={uid}" for name, uid in sorted(marks.items()))
        ref = Ref(POD_GROUP, gang.namespace, gang.name)
        body = {"metadata": {"annotations": {EVICTED: text}}}
        self._writes.put(beside(ref, "evicted"), StatusPatch(ref, body, ""))

    def _record(self, gang: Gang, text: str) -> None:
        """Note what has been moved for a gang, where a scheduler that starts anew will find it."""
        self._cache.assume_moves(gang.key, text)
        body = {"metadata": {"annotations": {MOVES: text or None}}}
        if is_upstream(gang):
            return  # PodGroups of Kubernetes itself are not ours to write
        ref, part = Ref(POD_GROUP, gang.namespace, gang.name), ""
        if gang.is_implicit:
            ref, part = pod_ref(gang.tasks[0].key), "status"
        self._writes.put(beside(ref, "moves"), StatusPatch(ref, body, part))

    def _shuffled(self, plan: Plan) -> Iterator[tuple[str, str]]:
        """Gangs of which plugins want pods elsewhere, and the plugins, each pair once."""
        moved = (a for a in plan.actions if isinstance(a, Evict) and a.plugin)
        pairs = ((self._cache.task(a.task), a.plugin) for a in moved)
        yield from dict.fromkeys((task.gang, plugin) for task, plugin in pairs if task is not None)

    def _note_shuffle(self, gang: Gang, plugin: str, now_ms: int) -> None:
        """Note when it was, where a scheduler that starts anew will find it."""
        if is_upstream(gang) or gang.is_implicit:
            return
        ref = Ref(POD_GROUP, gang.namespace, gang.name)
        body = {"metadata": {"annotations": shuffle_mark(plugin, now_ms)}}
        self._writes.put(beside(ref, f"shuffled by {plugin}"), StatusPatch(ref, body, ""))

    def _begin(self, eviction: Evict, now_ms: int) -> Victim | None:
        if eviction.plugin:
            self._cache.note_shuffle(eviction.plugin, now_ms)
        task = self._cache.task(eviction.task)
        uid = self._cache.assume_leaving(eviction.task, eviction.node)
        if uid is None:
            return None
        victim = Victim(eviction, uid, "" if task is None else task.gang)
        self._victims[eviction.task] = victim
        self._outbox.put(eviction.task, victim)
        return victim

    async def _evict(self, victim: Victim) -> None:
        await self._writes.until_idle()
        await self._until_bound(victim)
        if not (self._around.may_evict() and self._is_bound(victim)):
            self._drop(victim)
            return
        ref = victim.ref
        try:
            await self._api.evict(ref.namespace, ref.name, victim.uid)
        except (NotFound, Conflict):
            pass  # that very pod is gone, or another has its name
        except TooMany as e:
            raise Rejected(e.code, e.reason, e.message) from e
        self._victims.pop(victim.eviction.task, None)
        self._around.listener.evicted(victim)

    def _failed(self, task: str, error: KubeError) -> None:
        victim = self._victims.get(task)
        if victim is not None:
            self._drop(victim)
            eviction = victim.eviction
            message = f"pod {eviction.task} could not be evicted from {eviction.node}: {error}"
            if eviction.preemptor:
                self._around.holds.fail(eviction.preemptor, ReasonCode.NOT_EVICTED, message)
            self._around.listener.not_evicted(victim, error)

    async def _until_bound(self, victim: Victim) -> None:
        """Wait for the bind of a victim: a pod that is evicted before it is bound is lost."""
        while self._cache.awaits_bind(victim.eviction.task):
            await self._around.waiting.sleep(UNTIL_BOUND_S)

    def _is_bound(self, victim: Victim) -> bool:
        """Whether a victim holds room, as far as it is there at all."""
        task = self._cache.task(victim.eviction.task)
        return task is None or task.uid != victim.uid or bool(task.node)

    def _drop(self, victim: Victim) -> None:
        self._victims.pop(victim.eviction.task, None)
        self._cache.assume_staying(victim.eviction.task)
