"""Hypothesis strategies for crowded clusters, in which rules decide the gangs that start.

All objects are valid, names are few, and every plan can be listed. Unlike in `strategies`, tasks
share a few shapes, so task classes have several members.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from optsched.api.wellknown import (
    HIERARCHY,
    HIERARCHY_WEIGHTS,
    NUMA_TOPOLOGY_POLICY,
    RUNNING_ESTIMATE,
    VGPU_PODGROUP_POLICY,
)
from optsched.cluster.amounts import Usage, amounts, total
from optsched.cluster.dra_devices import (
    NO_DEVICES,
    DeviceAllocation,
    DeviceClaim,
    DeviceClaimRequest,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceNeed,
    Devices,
    PooledDevice,
)
from optsched.cluster.node_resources import (
    NO_SHARDING,
    Alignment,
    Chip,
    Geometry,
    GpuShareRequest,
    Instance,
    Numa,
    NumaCell,
    NumaHold,
    NumaNeed,
    NumaPart,
    Shard,
    Sharding,
    ShardMode,
    SharedGpu,
    Template,
)
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import (
    Budget,
    Claim,
    Gang,
    GangPhase,
    Node,
    Queue,
    QueueState,
    Snapshot,
)
from optsched.cluster.task import PodTerm, SpreadTerm, Task, TaskStatus
from tests.support.strategies import (
    CPU,
    GPU,
    HOST,
    MEMORY,
    MIB,
    NAMESPACES,
    PODS,
    VOLUMES,
    ZONE,
    label_selectors,
    node_selectors,
    shapes,
    taints,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.task import TaskShape

CONSTRAINTS = frozenset(
    {
        "node_selector",
        "node_affinity",
        "preferred_nodes",
        "tolerations",
        "pod_affinity",
        "pod_anti_affinity",
        "spread",
        "host_ports",
        "claims",
        "device",
        "sharding",
        "devices",
        "numa",
    }
)
"""The fields of a shape that rules use, without requests, and `shards`."""

_STATUSES = (
    *[TaskStatus.PENDING] * 6,
    *[TaskStatus.RUNNING] * 2,
    TaskStatus.RELEASING,
)
_CLAIMS = tuple(f"{namespace}/c{i}" for namespace in NAMESPACES for i in range(2))
_CSI = ("csi.x", "csi.y")
_AT, _OLD_AT = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
_VOLUME_ZONES = (
    ((_AT, ("x",)),),
    ((_AT, ("x", "y")),),
    ((_OLD_AT, ("y",)), (_AT, ("x", "y"))),
)
_PLACES_OF_NODES = (
    (),
    (_AT, "x"),
    (_AT, "y"),
    (_OLD_AT, "x"),
    ("topology.kubernetes.io/region", "r"),
)
_OPEN = (*[QueueState.OPEN] * 19, QueueState.CLOSED)
_ZONES = ((ZONE, "x"), (ZONE, "y"), (ZONE, "x"), (ZONE, "y"), ())
_POLICIES = ("", "", "", *Alignment)
_ESTIMATES = ({}, {RUNNING_ESTIMATE: "1h"}, {RUNNING_ESTIMATE: "5m"})
_PLACES = {
    ("q0", 2): {HIERARCHY: "root/x/q0", HIERARCHY_WEIGHTS: "1/2/1"},
    ("q0", 3): {HIERARCHY: "root/x/q0"},
    ("q1", 2): {HIERARCHY: "root/x/q1", HIERARCHY_WEIGHTS: "1/2/3"},
    ("q1", 3): {HIERARCHY: "root/y/q1", HIERARCHY_WEIGHTS: "1/3/1"},
}
"""Positions in a tree of departments, by queue and weight."""
_USED = {"q0": Usage(((CPU, 4e6), (GPU, 3e3)), 0)}
_MARKS = ((), (), ("app", "x"), ("app", "3"))


@dataclass(frozen=True)
class Most:
    """The maximum number of objects of each type."""

    nodes: int = 3
    queues: int = 2
    gangs: int = 3
    members: int = 2


# Strategies are cached, because the creation of a strategy takes longer than a draw.


@cache
def _one_of(values: tuple[Any, ...]) -> SearchStrategy[Any]:
    return st.sampled_from(values)


@cache
def _shapes(namespace: str, about: frozenset[str]) -> SearchStrategy[list[TaskShape]]:
    """Draw a few shapes that the tasks of a namespace share, including one missing claim."""
    usable = [key for key in (*_CLAIMS, f"{namespace}/gone") if key.startswith(namespace)]
    asks = st.builds(_amounts, _one_of((1, 1, 2, 3, 0)), _one_of((0, 0, 1)), _one_of((0, 0, 0, 1)))
    plain = shapes(namespace, usable, asks, about - _RELATIONS.keys()).map(_sensible)
    related = {name: _RELATIONS[name](namespace) for name in sorted(about & _RELATIONS.keys())}
    each = st.builds(lambda shape, **more: replace(shape, **more), plain, **related)
    if "devices" in about:
        claiming = _with_devices(namespace)
        each = st.builds(lambda shape, more: replace(shape, **more), each, claiming)
    if "cards" in about:
        each = st.builds(_sharing, each, _one_of((*_NO_CARDS, *_CARDS)), _one_of(_GROUPS))
    if "numa" in about:
        each = st.builds(_alone, each, _one_of(_POLICIES), st.booleans())
    return st.lists(each, min_size=1, max_size=3)


_CHIP = Chip("Ascend310P", 100, 110, (Template("vir01", 15), Template("vir02", 30)))
_NO_CARDS: tuple[tuple[GpuShareRequest, ...], ...] = ((), ())
_CARDS = (
    (GpuShareRequest(1, 40),),
    (GpuShareRequest(1, 60, 0, 50),),
    (GpuShareRequest(2, 0, 50),),
    (GpuShareRequest(1, 0, 100, 100),),
    (GpuShareRequest(1, 40), GpuShareRequest(1, 60)),
    (GpuShareRequest(1, 20, npu="Ascend310P"),),
    (GpuShareRequest(2, 0, 100, npu="Ascend310P"),),
    (GpuShareRequest(1, 10, npu="Ascend310P"), GpuShareRequest(1, 0, 100, npu="Ascend310P")),
    (GpuShareRequest(1, 40), GpuShareRequest(1, 20, npu="Ascend310P")),
)
_GROUPS = ("", "", "", "a/g")
_CUTS = (
    Geometry("halves", (Instance("h", 50, 2),)),
    Geometry("mixed", (Instance("h", 60, 1), Instance("q", 40, 1))),
)


def _sharing(shape: TaskShape, shared_gpus: tuple[GpuShareRequest, ...], group: str) -> TaskShape:
    """Return the shape of a pod with GPU shares and NPUs, sometimes with a group that spreads."""
    notes = ((VGPU_PODGROUP_POLICY, group),) if group and shared_gpus else ()
    return replace(shape, shared_gpus=shared_gpus, notes=notes)


def _alone(shape: TaskShape, policy: str, is_guaranteed: bool) -> TaskShape:
    """Return the shape of a pod with exclusive GPUs, and with exclusive whole
    CPUs if Guaranteed.
    """
    asked = dict(shape.request)
    cpus = asked.get(CPU, 0) // 1000 if is_guaranteed and asked.get(CPU, 0) % 1000 == 0 else 0
    gpus = asked.get(GPU, 0)
    needs = (NumaNeed(cpus, gpus),) if cpus or gpus else ()
    notes = ((NUMA_TOPOLOGY_POLICY, policy),) if policy else ()
    return replace(shape, numa=needs, notes=notes)


def _selectors() -> SearchStrategy[LabelSelector | None]:
    """Draw a label selector, mostly for pods of one existing application."""
    known = [LabelSelector((Requirement("app", Operator.IN, (app,)),)) for app in ("x", "y")]
    return st.sampled_from([*known, LabelSelector()]) | st.none() | label_selectors()


def _pod_terms(namespace: str) -> SearchStrategy[tuple[PodTerm, ...]]:
    term = st.builds(
        PodTerm,
        selector=_selectors(),
        namespaces=_one_of(((namespace,), (namespace,), NAMESPACES)),
        namespace_selector=st.none() | st.none() | label_selectors(),
        topology_key=_one_of((ZONE, HOST)),
    )
    return st.lists(term, max_size=2).map(tuple)


def _spread_terms(namespace: str) -> SearchStrategy[tuple[SpreadTerm, ...]]:
    term = st.builds(
        SpreadTerm,
        max_skew=_one_of((1, 1, 2)),
        topology_key=_one_of((ZONE, HOST)),
        selector=_selectors(),
        namespace=st.just(namespace),
        required=_one_of((1, 1, 1, 0)).map(bool),
        min_domains=_one_of((1, 1, 2)),
        honour_affinity=st.booleans(),
        honour_taints=st.booleans(),
    )
    return st.lists(term, max_size=2).map(tuple)


# --- devices -------------------------------------------------------------------------------------

DRIVER = "d.example.com"
CLASSES = {
    "any": DeviceClass("any", (f"device.driver == '{DRIVER}'",)),
    "a": DeviceClass("a", (f"device.attributes['{DRIVER}'].model == 'a'",)),
    "odd": DeviceClass("odd", ("device.allowsAnything",)),
}


def _asks(*number: int) -> SearchStrategy[DeviceClaimRequest]:
    """Draw the requests of one claim, mostly plain requests."""
    kinds = _one_of(("any", "any", "any", "a", "a", "a", "odd", "gone"))
    plain = st.builds(
        DeviceNeed,
        name=st.just(""),
        device_class=kinds,
        number=_one_of((1, 1, 2)),
        is_all=_one_of((0, 0, 0, 1)).map(bool),
        capacity=_one_of(((), (), (("memory", "2"),))),
    )
    choice = st.lists(plain, min_size=2, max_size=2).map(
        lambda two: DeviceNeed("", "", alternatives=tuple(two))
    )
    need = st.one_of(plain, plain, plain, choice)
    return _one_of(number).flatmap(
        lambda n: st.builds(_named, st.lists(need, min_size=n, max_size=n), _CONSTRAINTS)
    )


_MODEL = f"{DRIVER}/model"
_CONSTRAINTS = _one_of(
    (
        *[()] * 4,
        (DeviceConstraint((), _MODEL),),
        (DeviceConstraint((), _MODEL, is_distinct=True),),
        (DeviceConstraint(("r0",), _MODEL), DeviceConstraint(("r1/v0",), _MODEL, is_distinct=True)),
    )
)


def _named(
    needs: list[DeviceNeed], constraints: tuple[DeviceConstraint, ...]
) -> DeviceClaimRequest:
    found = []
    for i, need in enumerate(needs):
        others = tuple(replace(each, name=f"r{i}/v{j}") for j, each in enumerate(need.alternatives))
        found.append(replace(need, name=f"r{i}", alternatives=others))
    return DeviceClaimRequest(tuple(found), constraints if found else ())


def _with_devices(namespace: str) -> SearchStrategy[dict[str, Any]]:
    """Draw requests for own claims and shared claims, mostly for none."""
    keys = (f"{namespace}/s0", f"{namespace}/s1", f"{namespace}/gone")
    shared = _one_of(((), (), (keys[0],), (keys[0],), (keys[1],), keys[:2], keys[2:]))
    own = _asks(0, 0, 1, 1, 2).map(lambda ask: (ask,) if ask.needs else ())
    return st.fixed_dictionaries({"devices": own, "device_claims": shared})


_RELATIONS = {
    "pod_affinity": _pod_terms,
    "pod_anti_affinity": _pod_terms,
    "spread": _spread_terms,
}


def _sensible(shape: TaskShape) -> TaskShape:
    """Remove whole GPUs next to a GPU share, because no container may request both."""
    if shape.device is None:
        return shape
    return replace(shape, request=tuple((r, n) for r, n in shape.request if r != GPU))


def _amounts(cpu: int, memory: int = 0, gpu: int = 0) -> Amounts:
    found = {CPU: cpu * 500, MEMORY: memory * 256 * MIB, GPU: gpu}
    return amounts({name: amount for name, amount in found.items() if amount})


_REACH = st.none() | node_selectors()
_TAINTS = st.lists(taints(), max_size=1)


class _Contest:
    statuses = _STATUSES
    rooms: tuple[tuple[int, ...], ...] = (tuple(range(2, 8)), tuple(range(5)), (0, 1, 2))
    pods: tuple[int, ...] = (3, 2, 1, 4, 0)

    def __init__(self, draw: DrawFn, about: frozenset[str], most: Most) -> None:
        self._draw = draw
        self._about = about
        self._most = most
        self._nodes = [f"n{i}" for i in range(self._from(*range(1, most.nodes + 1)))]
        self._tasks: list[Task] = []
        self._known: dict[str, list[TaskShape]] = {}

    def _from(self, *values: Any) -> Any:
        return self._draw(_one_of(values))

    def snapshot(self) -> Snapshot:
        """Draw the whole snapshot."""
        queues = self._queues()
        names = [q.name for q in queues]
        number = self._from(*range(1, self._most.gangs + 1))
        gangs = [self._gang(i, names) for i in range(number)]
        if self._from(0, 0, 0, 1):
            self._task("b/stranger", "", TaskStatus.RUNNING)
        return Snapshot(
            taken_ms=1000,
            nodes=tuple(self._node(name) for name in self._nodes),
            gangs=tuple(sorted(gangs, key=lambda gang: gang.key)),
            queues=tuple(queues),
            usage=_USED,
            claims={key: self._claim(key) for key in self._used_claims()},
            namespaces={name: {"app": "x"} if name == "a" else {} for name in NAMESPACES},
            sharding=self._sharding() if "sharding" in self._about else NO_SHARDING,
            devices=self._devices() if "devices" in self._about else NO_DEVICES,
        )

    def _sharding(self) -> Sharding:
        mode = self._from(*[ShardMode.NONE] * 3, *ShardMode)
        wanted = tuple(name for name in self._nodes if self._from(1, 1, 0))
        used = self._nodes[:1] if self._from(0, 0, 1) else []
        return Sharding(mode, "mine", (Shard("mine", wanted), Shard("theirs", (), tuple(used))))

    # --- devices ---------------------------------------------------------------------------------

    def _devices(self) -> Devices:
        on_node = {n: self._devices_of(n) for n in self._nodes}
        names = {key for t in self._tasks for key in t.shape.device_claims}
        claims = {key: self._device_claim(key) for key in sorted(names) if "gone" not in key}
        for task in self._tasks:
            for key in task.device_claims[len(task.shape.device_claims) :]:
                ((needs, constraints),) = task.shape.devices
                claims[key] = DeviceClaim(
                    key, needs=needs, is_per_pod=True, constraints=constraints
                )
        for name, here in on_node.items():
            if here and self._from(0, 0, 1):
                held = DeviceAllocation(None, (("r", here[0].id),))
                claims[f"x/{name}"] = DeviceClaim(f"x/{name}", allocation=held)
        found = {name: here for name, here in on_node.items() if here}
        return Devices({key: claims[key] for key in sorted(claims)}, CLASSES, found)

    def _devices_of(self, node: str) -> tuple[PooledDevice, ...]:
        made = []
        for i in range(self._from(0, 1, 2, 2, 3)):
            model = ((_MODEL, self._from("a", "b")),)
            memory = ((f"{DRIVER}/memory", self._from("1", "2", "2")),)
            problem = self._from(*[""] * 9, "is tainted")
            key = DeviceId(DRIVER, node, f"d{i}")
            made.append(PooledDevice(key, model, memory, problem=problem))
        return tuple(made)

    def _device_claim(self, key: str) -> DeviceClaim:
        kind = self._from("open", "open", "open", "held", "bad")
        if kind == "open":
            needs, constraints = self._draw(_asks(1, 1, 2))
            return DeviceClaim(key, needs=needs, constraints=constraints)
        allocation = DeviceAllocation(self._draw(_REACH)) if kind == "held" else None
        return DeviceClaim(key, allocation=allocation, problem="is odd" * (kind == "bad"))

    # --- queues and claims -----------------------------------------------------------------------

    def _queues(self) -> list[Queue]:
        names = [f"q{i}" for i in range(self._from(*range(self._most.queues + 1)))]
        made = [self._queue(name, ["root", *names[:i]]) for i, name in enumerate(names)]
        return [Queue("default"), *made, Queue("root")]

    def _queue(self, name: str, parents: Sequence[str]) -> Queue:
        guarantee, ceiling = self._from(0, 0, 1, 2), self._from(0, 0, 1, 3)
        limits = _amounts(guarantee + ceiling, gpu=self._from(0, 1)) if ceiling else None
        weight = self._from(1, 2, 3)
        return Queue(
            name,
            weight=weight,
            priority=self._from(0, 0, 1),
            parent=self._from(*parents),
            guarantee=_amounts(guarantee),
            capability=limits,
            deserved=_amounts(guarantee + self._from(0, 1, 2)),
            state=self._from(*_OPEN),
            annotations=_PLACES.get((name, weight), {}),
        )

    def _used_claims(self) -> list[str]:
        used = {key for task in self._tasks for key in task.shape.claims}
        return sorted(used & set(_CLAIMS))

    def _claim(self, key: str) -> Claim:
        if self._from(0, 0, 0, 1):
            return Claim(key, problem="is lost")
        if self._from(False, True):
            driver = self._from("", *_CSI, *_CSI)
            handle = self._from("v0", "v1", "v2") if driver else ""
            zones = self._from((), (), *_VOLUME_ZONES)
            return Claim(key, self._draw(_REACH), driver=driver, handle=handle, zones=zones)
        made = bool(self._from(False, False, True))
        volumes = [v for v in VOLUMES if self._from(True, True, False)]
        return Claim(
            key,
            self._draw(_REACH) if made else None,
            waits_for_consumer=True,
            size_bytes=self._from(5, 10),
            provisions=made,
            selected_node="" if volumes else self._from("", "n0"),
            volumes=tuple(volumes),
            driver=self._from("", *_CSI) if made and not volumes else "",
        )

    # --- gangs -----------------------------------------------------------------------------------

    def _gang(self, number: int, queues: list[str]) -> Gang:
        key = f"{self._from(*NAMESPACES)}/g{number}"
        app, count = self._from("x", "y"), self._from(*range(1, self._most.members + 1))
        tasks = [
            self._task(f"{key}-{i}", key, self._from(*self.statuses), app=app, index=i)
            for i in range(count)
        ]
        return Gang(
            key,
            queue=self._from(*queues),
            min_member=self._from(count, 1),
            min_role=self._from((), (), (), (("ps", 1),)),
            min_resources=_amounts(self._from(0, 0, 0, 2, 5)),
            priority=self._from(0, 1),
            created_ms=number,
            waiting_since_ms=number,
            phase=GangPhase.INQUEUE,
            annotations=_ESTIMATES[number % len(_ESTIMATES)],
            tasks=tuple(sorted(tasks, key=lambda task: task.order)),
        )

    def _task(
        self, key: str, gang: str, status: TaskStatus, *, app: str = "x", index: int = 0
    ) -> Task:
        namespace = key.partition("/")[0]
        if namespace not in self._known:
            self._known[namespace] = self._draw(_shapes(namespace, self._about))
        known = self._known[namespace]
        shape = known[self._from(*range(len(known)))]
        if status.holds_resources:
            shape = replace(shape, devices=(), device_claims=())
        task = Task(
            key,
            shape,
            status,
            device_claims=(*shape.device_claims, *([f"{key}-own"] if shape.devices else [])),
            gang=gang,
            role=("ps", "worker")[index > 0],
            index=index,
            labels={"app": app},
            node=self._from(*self._nodes) if status.holds_resources else "",
        )
        self._tasks.append(task)
        return task

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        here = [t for t in self._tasks if t.node == name]
        held = {**total(t.shape.request for t in here), PODS: len(here)}
        # Each running GPU share has a separate device, so that no rule must guess shared devices.
        held[GPU] = held.get(GPU, 0) + sum(t.shape.device is not None for t in here)
        room = dict(_amounts(*(self._from(*each) for each in self.rooms)))
        room[PODS] = self._from(*self.pods)
        offered = {r: held.get(r, 0) + room.get(r, 0) for r in held.keys() | room.keys()}
        numa = self._numa(here) if "numa" in self._about else None
        marks = [self._from(*_ZONES), self._from(*_MARKS)]
        if "claims" in self._about:
            marks.append(self._from(*_PLACES_OF_NODES))
        labels = [pair for pair in marks if pair]
        return Node(
            name,
            amounts({r: amount for r, amount in offered.items() if amount or r == PODS}),
            labels={HOST: name, **dict(labels)},
            taints=tuple(self._draw(_TAINTS)),
            ready=bool(self._from(*[1] * 19, 0)),
            unschedulable=bool(self._from(*[0] * 19, 1)),
            residents=tuple(sorted(here, key=lambda task: task.key)),
            numa=numa,
            attach_limits=self._attach_limits() if "claims" in self._about else (),
            shared_gpus=self._cards() if "cards" in self._about else (),
        )

    def _attach_limits(self) -> Amounts:
        """Draw the limits of attached volumes by driver, which the node may already exceed."""
        found = {driver: self._from(None, 0, 1, 1, 2) for driver in _CSI}
        return amounts({driver: most for driver, most in found.items() if most is not None})

    def _cards(self) -> tuple[SharedGpu, ...]:
        """Draw shared GPUs with or without MIG, and NPUs."""
        made = []
        for i in range(self._from(0, 1, 2, 2)):
            mode, sharers = self._from("hami-core", "hami-core", "mig"), self._from(1, 2, 3)
            cuts = _CUTS if mode == "mig" else ()
            ill = self._from(*[0] * 9, 1)
            card = SharedGpu(f"GPU-{i}", 100, sharers, mode, is_healthy=not ill, geometries=cuts)
            made.append(card)
        npu = SharedGpu("", 100, self._from(2, 7), npu=_CHIP.name, chip=_CHIP)
        made += (replace(npu, key=f"npu-{i}") for i in range(self._from(0, 0, 1, 2)))
        return tuple(made)

    def _numa(self, here: list[Task]) -> Numa | None:
        """Draw one or two NUMA cells. All residents have reported their CPUs and GPUs."""
        policy = self._from(None, *Alignment)
        if policy is None:
            return None
        holds: list[NumaHold] = []
        held: Counter[tuple[int, str]] = Counter()
        for task in (t for t in here if t.shape.numa):
            (need,), cell = task.shape.numa, self._from(0, 1)
            holds.append(NumaHold(task.key, "", (NumaPart(cell, need.cpus, need.gpus),)))
            held[cell, CPU] += need.cpus
            held[cell, GPU] += need.gpus
        has_gpus = self._from(0, 1)
        cells = []
        for cell in range(2):
            cpus, gpus = self._from(0, 1, 2), self._from(0, 1) * has_gpus
            reserved, more = self._from(0, 0, 1), held[cell, GPU] * has_gpus
            total = held[cell, CPU] + cpus + reserved
            cells.append(NumaCell(cell, total, reserved, cpus, more + gpus, gpus))
        return Numa(policy, tuple(cells), tuple(holds) if has_gpus else _without_gpus(holds))


def _without_gpus(holds: list[NumaHold]) -> tuple[NumaHold, ...]:
    return tuple(replace(h, parts=tuple(replace(p, gpus=0) for p in h.parts)) for h in holds)


@st.composite
def contests(draw: DrawFn, about: frozenset[str] = CONSTRAINTS, most: Most = Most()) -> Snapshot:
    """Draw a small cluster with tasks that have the constraints `about`."""
    return _Contest(draw, about, most).snapshot()


class _Crowd(_Contest):
    """A generator of nearly full clusters with many running tasks, some of them protected."""

    statuses = (TaskStatus.PENDING, *[TaskStatus.RUNNING] * 2, TaskStatus.BOUND)
    rooms = ((0, 0, 0, 1, 2), (0, 0, 1), (0, 0, 1))
    pods = (0, 1, 2, 2)

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        one = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
        budgets = (Budget("a/few", one, self._from(0, 1, 2)),) if self._from(0, 0, 1) else ()
        if self._from(0, 1):
            budgets = tuple(replace(b, yields_to_guarantees=True) for b in budgets)
        return replace(found, budgets=budgets)

    def _queue(self, name: str, parents: Sequence[str]) -> Queue:
        return replace(super()._queue(name, parents), reclaimable=bool(self._from(1, 1, 1, 0)))

    def _gang(self, number: int, queues: list[str]) -> Gang:
        return replace(super()._gang(number, queues), priority=self._from(0, 1, 2, 3))

    def _task(
        self, key: str, gang: str, status: TaskStatus, *, app: str = "x", index: int = 0
    ) -> Task:
        super()._task(key, gang, status, app=app, index=index)
        task = self._tasks.pop()
        shape = replace(task.shape, preempts=False) if self._from(*[0] * 9, 1) else task.shape
        may_go, rank = bool(self._from(*[1] * 9, 0)), self._from(0, 0, 1)
        self._tasks.append(replace(task, shape=shape, preemptable=may_go, priority=rank))
        return self._tasks[-1]


@st.composite
def crowds(draw: DrawFn, about: frozenset[str] = CONSTRAINTS, most: Most = Most()) -> Snapshot:
    """Draw a small cluster that is nearly full, with tasks that have the constraints `about`."""
    return _Crowd(draw, about, most).snapshot()
