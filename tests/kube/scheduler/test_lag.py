"""Tests with delayed watches: the cache lags behind the server, and the server behind plans."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from optsched.api.kinds import POD
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Changed, Deleted
from optsched.kube.client.errors import Forbidden, KubeError, ServerFault, Unreachable
from optsched.kube.runtime.work_queues import WriteQueue
from optsched.kube.scheduler.binder import BinderContext, LiveBinder
from optsched.kube.scheduler.evictor import Evictor, EvictorContext
from optsched.kube.scheduler.status_writer import make_writer
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import group, node, pod, queue
from tests.kube.cluster import key_of, kind_of
from tests.kube.fakes import FakeApi, FakeClock, ref_of, running, waiting
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind
    from optsched.kube.cache.reflector import WatchEvent
    from optsched.kube.client.listing import Raw
    from optsched.kube.scheduler.outcomes import Bind, Failure, Victim

CPUS = 4
QUEUES = ("a", "b", "c")
POLICY = parse_policy(
    """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
""",
    "lag.conf",
)
ERRORS = (
    Unreachable("connection reset"),
    ServerFault(500, "InternalError", "something broke"),
    Forbidden(403, "Forbidden", "you may not"),
)


class Server(FakeApi):
    """An API server that delays events, each kind in its order.

    The server raises AssertionError when the pods bound to a node exceed its capacity.
    """

    def __init__(self, *objects: Raw) -> None:
        self._news: deque[tuple[Kind, WatchEvent]] = deque()
        super().__init__(*objects)

    def put(self, obj: Raw) -> Raw:
        kept = super().put(obj)
        self._news.append((kind_of(kept), Changed(copy.deepcopy(kept))))
        self._look()
        return kept

    def end(self) -> None:
        """Delete the first terminating pod."""
        for ref, obj in self.objects.items():
            if ref.kind == POD and "deletionTimestamp" in obj["metadata"]:
                self._delete(obj)
                return

    async def evict(
        self, namespace: str, name: str, uid: str, version: str = "", *, grace_s: int | None = None
    ) -> None:
        await super().evict(namespace, name, uid, version, grace_s=grace_s)
        (obj,) = (o for o in self.of(POD) if key_of(o) == f"{namespace}/{name}")
        if not obj["spec"].get("nodeName"):
            self._delete(obj)  # a pod without a node has no containers to stop

    def catch_up(self, cache: ClusterCache, number: int) -> None:
        """Deliver the oldest events."""
        for _ in range(min(number, len(self._news))):
            cache.apply(*self._news.popleft())

    def _delete(self, obj: Raw) -> None:
        self._version += 1
        del self.objects[ref_of(obj)]
        last = copy.deepcopy(obj)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._news.append((POD, Deleted(last)))

    def _look(self) -> None:
        pods = (obj for ref, obj in self.objects.items() if ref.kind == POD)
        held = Counter(obj["spec"].get("nodeName", "") for obj in pods)
        del held[""]
        assert all(number <= CPUS for number in held.values()), held


class World:
    """Two nodes of four CPUs, three queues that share them, and the executors of plans."""

    def __init__(self) -> None:
        sizes = {"allocatable": {"cpu": str(CPUS), "pods": "20"}}
        nodes = ({**node(name), "status": sizes} for name in ("n1", "n2"))
        groups = (group(name, {"queue": name, "minMember": 1}) for name in QUEUES)
        self.api = Server(*nodes, *(queue(name, weight=1) for name in QUEUES), *groups)
        self.cache = ClusterCache()
        self.api.tell(self.cache)
        self.clock = FakeClock()
        self.slept: list[float] = []
        self.made: Counter[str] = Counter()
        ways = waiting(self.clock, self.slept)
        around = BinderContext(self.clock, self, lambda: True, ways)
        self.binder = LiveBinder(self.api, self.cache, around)
        self.writes = WriteQueue(
            make_writer(self.api, lambda: True), ways, on_failure=lambda _, __: None
        )
        evicting = EvictorContext(self, ways, self.binder.gang_backoff, lambda: True)
        self.evictor = Evictor(self.api, self.cache, self.writes, evicting)

    def bound(self, bind: Bind, seconds: float) -> None:
        """Ignore the bind."""

    def failed(self, bind: Bind, failure: Failure) -> None:
        """Ignore the failed bind."""

    def evicted(self, victim: Victim) -> None:
        """Ignore the eviction."""

    def not_evicted(self, victim: Victim, error: KubeError) -> None:
        """Ignore the failed eviction."""

    def spared(self, victim: Victim, why: str) -> None:
        """Ignore the cancelled eviction."""

    def arrive(self, gang: str, number: int) -> None:
        """Create more pods of a gang."""
        for _ in range(number):
            name = f"{gang}-{self.made[gang]}"
            self.made[gang] += 1
            mark = {"scheduling.k8s.io/group-name": gang}
            self.api.put(pod(name, uid=f"uid-{name}", annotations=mark))

    def session(self) -> None:
        """Run one session and start to carry out its plan."""
        self.binder.gang_backoff.release_due()
        snapshot = self.cache.snapshot(self.clock.now_ms())
        plan = run_session(snapshot, POLICY, SessionContext()).plan
        self.binder.carry_out(plan, snapshot)
        self.evictor.carry_out(plan, snapshot)

    async def take(self, step: tuple[str, Any]) -> None:
        """Apply one step of the scenario."""
        match step:
            case ("arrive", (gang, number)):
                self.arrive(gang, number)
            case ("tell", number):
                self.api.catch_up(self.cache, number)
            case ("turn", number):
                for _ in range(number):
                    await asyncio.sleep(0)
            case ("refuse", (method, error)):
                self.api.refuse(method, error)
            case ("lose", (method, error)):
                self.api.lose(method, error)
            case ("end", _):
                self.api.end()
            case _:
                self.session()

    async def live(self, steps: list[tuple[str, Any]]) -> None:
        """Apply all steps of the scenario."""
        async with running(self.binder.run(), self.writes.run(), self.evictor.run()):
            for step in steps:
                await self.take(step)

    @property
    def held(self) -> Mapping[str, int]:
        """Return the number of bound pods by gang."""
        return Counter(
            obj["metadata"]["name"].partition("-")[0]
            for obj in self.api.of(POD)
            if obj["spec"].get("nodeName")
        )


SESSION = ("session", None)
METHODS = st.sampled_from(["bind", "evict", "patch"])
STEPS = st.one_of(
    st.just(SESSION),
    st.just(SESSION),
    st.tuples(st.just("turn"), st.integers(1, 40)),
    st.tuples(st.just("tell"), st.integers(1, 12)),
    st.tuples(st.just("end"), st.none()),
    st.tuples(st.just("arrive"), st.tuples(st.sampled_from(QUEUES), st.integers(1, 8))),
    st.tuples(st.just("refuse"), st.tuples(METHODS, st.sampled_from(ERRORS))),
    st.tuples(st.just("lose"), st.tuples(METHODS, st.sampled_from(ERRORS[:2]))),
)


@settings(max_examples=num_examples(60), deadline=None)
@example(
    [
        ("arrive", ("a", 8)),
        ("tell", 8),
        SESSION,
        ("arrive", ("b", 8)),
        ("tell", 8),
        SESSION,
        SESSION,
        ("turn", 40),
    ]
)
@given(st.lists(STEPS, max_size=50))
def test_no_node_is_ever_given_away_twice(steps: list[tuple[str, Any]]) -> None:
    world = World()
    asyncio.run(world.live(steps))


def test_the_shares_are_reached_however_late_it_is_told() -> None:
    world = World()
    steps: list[tuple[str, Any]] = [("arrive", (gang, 8)) for gang in QUEUES[:2]]
    for _ in range(40):
        steps += [SESSION, ("turn", 30), ("end", None), ("tell", 3)]
    asyncio.run(world.live(steps))
    assert world.held == {"a": 4, "b": 4}
