"""Hypothesis strategies for domain values, up to whole small clusters.

Names and values are few on purpose, so that selectors match labels, tolerations match taints, and
tasks compete. Clusters keep the invariants of real clusters. Nodes hold no more than their
allocatable resources. Tasks with a node are residents of this node. Lists are ordered, and
references name existing objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from optsched.cluster.amounts import amounts, total
from optsched.cluster.node_resources import RequiredData, Shard, Sharding, ShardMode, Store
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import (
    Budget,
    Claim,
    Gang,
    GangPhase,
    Load,
    Node,
    Queue,
    QueueState,
    Quota,
    Snapshot,
    Volume,
)
from optsched.cluster.task import (
    DeviceRequest,
    HostPort,
    PodTerm,
    QueueGate,
    SpreadTerm,
    Task,
    TaskShape,
    TaskStatus,
)
from optsched.cluster.topology import (
    HyperNode,
    SubGroupRule,
    Topology,
    TopologyMode,
    TopologyRequest,
)
from optsched.formats.codec.nodes import GPU_MODEL_LABEL
from optsched.formats.codec.pod_groups import gang_without_group, implicit_gang
from optsched.formats.codec.pods.reader import IMPLICIT_PREFIX
from optsched.formats.snapshots.object_stores import NAMESPACE_LABEL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from optsched.cluster.amounts import Amounts

CPU, MEMORY, GPU, PODS = "cpu", "memory", "nvidia.com/gpu", "pods"
ZONE, HOST = "zone", "kubernetes.io/hostname"
MIB = 2**20

NAMESPACES = ("a", "b")
ROLES = ("", "ps", "worker")

_VALUES = st.sampled_from(["x", "y", "3"])
_PENDING = (TaskStatus.PENDING, TaskStatus.GATED)
_PLACED = (TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING)
_STORES = (Store(), Store(), Store((("r/a:1", 7), ("r/b:latest", 9)), ("atlas", "maps")))
_WANTS = (
    RequiredData(),
    RequiredData(),
    RequiredData(("r/a:1", ""), ("maps",)),
    RequiredData((), ("atlas", "maps")),
)
_FINISHED = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)


# --- amounts, labels, selectors ------------------------------------------------------------------


def some_amounts(most: int = 8, least: int = 1) -> SearchStrategy[Amounts]:
    """Draw amounts of CPU, memory and GPUs, each of them optional."""
    numbers = st.integers(least, most)
    chosen = {CPU: numbers.map(lambda n: n * 500), MEMORY: numbers.map(lambda n: n * 256 * MIB)}
    return st.fixed_dictionaries({}, optional={**chosen, GPU: numbers}).map(amounts)


def labels(*keys: str) -> SearchStrategy[dict[str, str]]:
    """Draw labels, by default with the keys that selectors use."""
    return st.dictionaries(st.sampled_from(keys or ("app", "rev", ZONE)), _VALUES, max_size=3)


@st.composite
def requirements(draw: DrawFn, *operators: Operator) -> Requirement:
    """Draw a condition on a label, by default without Gt and Lt, which pod selectors lack."""
    plain = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)
    operator = draw(st.sampled_from(operators or plain))
    key = draw(st.sampled_from(["app", "rev", ZONE]))
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return Requirement(key, operator)
    if operator in (Operator.GT, Operator.LT):
        return Requirement(key, operator, (str(draw(st.integers(-3, 9))),))
    values = draw(st.lists(_VALUES, min_size=1, max_size=2, unique=True))
    return Requirement(key, operator, tuple(values))


def label_selectors() -> SearchStrategy[LabelSelector]:
    """Draw a selector of pods or namespaces, which selects all objects if it is empty."""
    return st.lists(requirements(), max_size=2).map(lambda r: LabelSelector(tuple(r)))


@st.composite
def node_terms(draw: DrawFn) -> NodeTerm:
    """Draw a term on labels and names of nodes, which selects no node if it is empty."""
    conditions = draw(st.lists(requirements(*Operator), max_size=2))
    names = draw(st.lists(st.sampled_from(["n0", "n1"]), max_size=1))
    operator = draw(st.sampled_from([Operator.IN, Operator.NOT_IN]))
    named = tuple(Requirement("metadata.name", operator, (name,)) for name in names)
    return NodeTerm(tuple(conditions), named)


def node_selectors() -> SearchStrategy[NodeSelector]:
    """Draw a selector of nodes, which selects no node without terms."""
    return st.lists(node_terms(), max_size=2).map(lambda terms: NodeSelector(tuple(terms)))


# --- shapes --------------------------------------------------------------------------------------


def effects() -> SearchStrategy[TaintEffect]:
    """Draw the effect of a taint."""
    return st.sampled_from(list(TaintEffect))


def taints() -> SearchStrategy[Taint]:
    """Draw a taint with one of two keys."""
    return st.builds(Taint, st.sampled_from(["gpu", "old"]), st.sampled_from(["", "x"]), effects())


def tolerations() -> SearchStrategy[Toleration]:
    """Draw a toleration of one taint, of a key, or of all taints."""
    effect = st.none() | effects()
    key = st.sampled_from(["gpu", "old"])
    by_value = st.builds(Toleration, key, value=st.sampled_from(["", "x"]), effect=effect)
    return by_value | st.builds(Toleration, key | st.just(""), st.just(True), effect=effect)


def host_ports() -> SearchStrategy[HostPort]:
    """Draw a host port, on one address or on all addresses."""
    address = st.sampled_from(["0.0.0.0", "127.0.0.1"])
    return st.builds(HostPort, st.sampled_from(["TCP", "UDP"]), address, st.sampled_from([80, 443]))


@st.composite
def pod_terms(draw: DrawFn, namespace: str) -> PodTerm:
    """Draw an affinity term of a pod in a namespace."""
    others = draw(st.none() | label_selectors())
    named = draw(st.sets(st.sampled_from(NAMESPACES), min_size=others is None))
    return PodTerm(
        selector=draw(st.none() | label_selectors()),
        namespaces=tuple(sorted(named)) or ((namespace,) if others is None else ()),
        namespace_selector=others,
        topology_key=draw(st.sampled_from([ZONE, HOST])),
    )


def spread_terms(namespace: str) -> SearchStrategy[SpreadTerm]:
    """Draw a topology spread constraint of a pod in a namespace."""
    return st.builds(
        SpreadTerm,
        max_skew=st.integers(1, 2),
        topology_key=st.sampled_from([ZONE, HOST]),
        selector=st.none() | label_selectors(),
        namespace=st.just(namespace),
        required=st.booleans(),
        min_domains=st.integers(1, 2),
        honour_affinity=st.booleans(),
        honour_taints=st.booleans(),
    )


def devices() -> SearchStrategy[DeviceRequest]:
    """Draw a share of one GPU or several whole GPUs, of any model or of some models."""
    models = st.sampled_from([(), ("T4",), ("A10", "T4")])
    shares = st.builds(DeviceRequest, st.just(1), st.sampled_from([250, 460]), models)
    return shares | st.builds(DeviceRequest, st.integers(1, 2), st.just(1000), models)


def _few(each: SearchStrategy[object]) -> SearchStrategy[tuple[object, ...]]:
    """Draw mostly nothing, and sometimes one or two values."""
    return st.just(()) | st.lists(each, max_size=2).map(tuple)


def shapes(
    namespace: str = "a",
    claims: Sequence[str] = (),
    request: SearchStrategy[Amounts] | None = None,
    about: Collection[str] | None = None,
) -> SearchStrategy[TaskShape]:
    """Draw a shape of a task.

    Parameters
    ----------
    claims
        The keys of the claims that the task may use.
    request
        A strategy for the requested resources, by default a few of each resource.
    about
        The names of the constraint fields, or None for all constraints.

    """
    terms = pod_terms(namespace)
    weights = st.integers(1, 100)
    signed = weights | weights.map(lambda w: -w)
    keys = st.sets(st.sampled_from(sorted(claims)), max_size=2) if claims else st.just(set())
    constraints: dict[str, SearchStrategy[Any]] = {
        "node_selector": labels("app", ZONE).map(lambda d: tuple(sorted(d.items()))) | st.just(()),
        "node_affinity": st.none() | node_selectors(),
        "preferred_nodes": _few(st.tuples(weights, node_terms())),
        "tolerations": _few(tolerations()),
        "pod_affinity": _few(terms),
        "pod_anti_affinity": _few(terms),
        # Kubernetes lists preferred terms before avoided terms.
        "preferred_pods": _few(st.tuples(signed, terms)).map(_wanted_first),
        "spread": _few(spread_terms(namespace)),
        "host_ports": st.sets(host_ports(), max_size=2).map(_ports_in_order),
        "claims": keys.map(lambda found: tuple(sorted(found))),
        "device": st.none() | devices(),
        "preempts": st.booleans(),
        "burst": st.sampled_from([(), (("cpu", 500),), (("cpu", 1), ("memory", 2))]),
    }
    chosen = {name: constraints[name] for name in constraints if about is None or name in about}
    asked = some_amounts() if request is None else request
    return st.builds(TaskShape, request=asked, **chosen)


def _ports_in_order(ports: Iterable[HostPort]) -> tuple[HostPort, ...]:
    return tuple(sorted(ports, key=lambda port: (port.protocol, port.address, port.port)))


def _wanted_first(terms: Sequence[tuple[int, PodTerm]]) -> tuple[tuple[int, PodTerm], ...]:
    return tuple(sorted(terms, key=lambda each: each[0] < 0))


# --- clusters ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The maximum number of objects of each type in a cluster.

    Attributes
    ----------
    members
        The number of pods of one PodGroup.
    strangers
        The number of pods of other schedulers.

    """

    nodes: int = 3
    queues: int = 2
    gangs: int = 3
    members: int = 3
    strangers: int = 2


def times_ms() -> SearchStrategy[int]:
    """Draw a time soon after 1970."""
    return st.integers(0, 100_000)


def problems(code: ReasonCode) -> SearchStrategy[Reason | None]:
    """Draw a reason, mostly None."""
    return st.none() | st.none() | st.text("ab: ", max_size=5).map(lambda text: Reason(code, text))


@st.composite
def queues(draw: DrawFn, name: str, parents: Sequence[str]) -> Queue:
    """Draw a queue with a guarantee within its deserved amounts and its capability."""
    guarantee = draw(some_amounts(3, 0))
    deserved = draw(_at_least(guarantee))
    return Queue(
        name=name,
        weight=draw(st.integers(1, 4)),
        capability=draw(st.none() | _at_least(guarantee)) or None,
        deserved=amounts({**dict(guarantee), **dict(deserved)}),
        guarantee=guarantee,
        reclaimable=draw(st.booleans()),
        parent=draw(st.sampled_from(parents)),
        priority=draw(st.integers(0, 2)),
        created_ms=draw(times_ms()),
        state=draw(st.sampled_from([QueueState.OPEN, *QueueState])),
        is_fifo=draw(st.booleans()),
        annotations=draw(labels("volcano.sh/hierarchy", "note")),
        problem=draw(problems(ReasonCode.INVALID_QUEUE)),
    )


def _parents(name: str, names: Sequence[str]) -> list[str]:
    """Return the queues that may be parents of a queue without a cycle."""
    return ["root", *(other for other in names if other < name and name != "root")]


def _at_least(floor: Amounts) -> SearchStrategy[Amounts]:
    by_name = dict(floor)
    return some_amounts(8, 0).map(
        lambda found: amounts({name: max(n, by_name.get(name, 0)) for name, n in found})
    )


@st.composite
def claims(draw: DrawFn, key: str) -> Claim:
    """Draw a claim that is bound, waits for its consumer, or cannot be used."""
    kind, driver = draw(st.integers(0, 2)), draw(st.sampled_from(["", "csi.x", "csi.y"]))
    handle = draw(st.sampled_from(["v0", "v1"])) if driver else ""
    if kind == 0:
        nodes, zones = draw(st.none() | node_selectors()), draw(st.sampled_from(_VOLUME_ZONES))
        return Claim(key, nodes=nodes, driver=driver, handle=handle, zones=zones)
    if kind == 1 and draw(st.booleans()):
        return draw(_scarce(key))
    if kind == 1:
        allowed = st.lists(requirements(Operator.IN), max_size=2).map(lambda r: NodeTerm(tuple(r)))
        terms = draw(st.lists(allowed, max_size=2))
        nodes = NodeSelector(tuple(terms)) if terms else None
        selected, made = draw(st.sampled_from(["", "", "n0"])), draw(st.booleans())
        return Claim(
            key,
            nodes,
            waits_for_consumer=True,
            provisions=made,
            selected_node=selected,
            driver=driver if made else "",
        )
    problem = draw(st.sampled_from(["is not bound", "is lost"]))
    return Claim(key, problem=problem, driver=driver, handle=draw(st.sampled_from(["", handle])))


_ATTACH_LIMITS = ((), (), (("csi.x", 1),), (("csi.x", 0), ("csi.y", 2)))
_VOLUME_ZONES = (
    (),
    (("topology.kubernetes.io/zone", ("x",)),),
    (
        ("failure-domain.beta.kubernetes.io/zone", ("x", "y")),
        ("topology.kubernetes.io/zone", ("y",)),
    ),
)


VOLUMES = tuple(
    Volume(f"v{i}", "local", size, NodeSelector((NodeTerm((), (by_name,)),)))
    for i, (size, names) in enumerate([(10, ("n0",)), (20, ("n1", "n2")), (30, ("n0", "n2"))])
    for by_name in (Requirement("metadata.name", Operator.IN, names),)
)
"""Volumes of one class, the smallest first."""


def _scarce(key: str) -> SearchStrategy[Claim]:
    """Draw a claim that needs one of few volumes."""
    some = st.sets(st.sampled_from(range(len(VOLUMES))), min_size=1)
    return some.map(
        lambda chosen: Claim(
            key,
            waits_for_consumer=True,
            size_bytes=10,
            provisions=False,
            volumes=tuple(VOLUMES[i] for i in sorted(chosen)),
        )
    )


def topology_requests() -> SearchStrategy[TopologyRequest]:
    """Draw a hard or soft topology request, with a limit by number, by name, or without one."""
    limits = st.sampled_from([(None, ""), (0, ""), (1, ""), (2, ""), (None, "rack")])
    modes = st.sampled_from(list(TopologyMode))
    return st.builds(lambda mode, limit: TopologyRequest(mode, *limit), modes, limits)


def sub_group_rules() -> SearchStrategy[SubGroupRule]:
    """Draw a rule for subgroups of a gang."""
    return st.builds(
        SubGroupRule,
        name=st.sampled_from(["", "tp", "dp"]),
        size=st.integers(1, 3),
        min_groups=st.integers(0, 2),
        selector=st.none() | label_selectors(),
        keys=st.sampled_from([(), ("rev",), ("app", "rev")]),
        topology=st.none() | topology_requests(),
    )


@st.composite
def topologies(draw: DrawFn, nodes: Sequence[str]) -> Topology:
    """Draw a forest of HyperNodes with members over some of the nodes."""
    names = [f"s{i}" for i in range(draw(st.integers(0, 4)))]
    tiers = {name: draw(st.integers(0, 3)) for name in names}
    parents = {
        name: draw(st.sampled_from(["", *(n for n in names if tiers[n] > tiers[name])]))
        for name in names
    }
    owner = {node: draw(st.sampled_from(["", *names])) for node in nodes}
    while empty := set(names).difference(owner.values(), (parents[name] for name in names)):
        names = [name for name in names if name not in empty]
    return Topology(
        tuple(
            HyperNode(
                name,
                tiers[name],
                draw(st.sampled_from(["", "rack"])),
                parents[name],
                tuple(node for node in sorted(nodes) if owner[node] == name),
            )
            for name in names
        )
    )


class _Cluster:
    """A generator of the parts of one snapshot."""

    def __init__(self, draw: DrawFn, sizes: Sizes, shape: SearchStrategy[TaskShape] | None) -> None:
        self._draw = draw
        self._sizes = sizes
        self._shape = shape
        self._nodes = [f"n{i}" for i in range(draw(st.integers(0, sizes.nodes)))]
        self._queue_names = ["default", "root"]
        self._claims = self._draw_claims()
        self._tasks: list[Task] = []

    def snapshot(self) -> Snapshot:
        """Draw the whole snapshot."""
        count = self._draw(st.integers(0, self._sizes.queues))
        self._queue_names = sorted(["default", "root", *(f"q{i}" for i in range(count))])
        names = self._queue_names
        found = [self._gang(i) for i in range(self._draw(st.integers(0, self._sizes.gangs)))]
        self._draw_strangers()
        namespaces = {
            name: {**self._draw(labels("app", "team")), NAMESPACE_LABEL: name}
            for name in NAMESPACES
        }
        return Snapshot(
            taken_ms=self._draw(times_ms()),
            nodes=tuple(self._node(name) for name in self._nodes),
            gangs=tuple(sorted(found, key=lambda gang: gang.key)),
            queues=tuple(self._draw(queues(name, _parents(name, names))) for name in names),
            claims=self._claims,
            namespaces=namespaces,
            budgets=self._draw_budgets(),
            topology=self._draw(topologies(self._nodes)),
            quotas=self._draw_quotas(),
            sharding=self._draw_sharding(),
        )

    def _draw_budgets(self) -> tuple[Budget, ...]:
        keys = sorted(self._draw(st.sets(st.sampled_from(["a/b0", "a/b1", "b/b0"]), max_size=2)))
        selector = st.none() | label_selectors()
        allowed, yields = st.integers(0, 2), st.booleans()
        return tuple(Budget(k, *map(self._draw, (selector, allowed, yields))) for k in keys)

    def _draw_sharding(self) -> Sharding:
        some = st.sets(st.sampled_from(["n0", "n1", "n2"])).map(lambda found: tuple(sorted(found)))
        names = sorted(self._draw(st.sets(st.sampled_from(["batch", "volcano"]))))
        shards = tuple(Shard(name, self._draw(some), self._draw(some)) for name in names)
        mode = self._draw(st.sampled_from(list(ShardMode)))
        return Sharding(mode, "" if mode is ShardMode.NONE else "volcano", shards)

    def _draw_quotas(self) -> tuple[Quota, ...]:
        keys = sorted(self._draw(st.sets(st.sampled_from(["a/q0", "a/q1", "b/q0"]), max_size=2)))
        names = st.sampled_from(["cpu", "requests.cpu", "limits.memory", "pods", "count/pods"])
        some = st.dictionaries(names, st.integers(0, 9000), min_size=1, max_size=3)
        listed = some.map(lambda found: tuple(sorted(found.items())))
        return tuple(Quota(k, self._draw(listed), self._draw(listed)) for k in keys)

    def _draw_claims(self) -> dict[str, Claim]:
        keys = [f"{namespace}/c{i}" for namespace in NAMESPACES for i in range(2)]
        chosen = sorted(self._draw(st.sets(st.sampled_from(keys))))
        return {key: self._draw(claims(key)) for key in chosen}

    def _gang(self, number: int) -> Gang:
        namespace = self._draw(st.sampled_from(NAMESPACES))
        kind = self._draw(st.sampled_from(["group", "group", "single", "missing"]))
        if kind == "single":
            return self._single(namespace, number)
        key = f"{namespace}/g{number}"
        count = self._draw(st.integers(int(kind == "missing"), self._sizes.members))
        members = [self._task(f"{key}-{i}", key) for i in range(count)]
        queue = self._draw(st.sampled_from([*self._queue_names, "nowhere"]))
        if kind == "missing":
            return gang_without_group(key, members, queue)
        return self._draw(_groups(key, queue, tuple(members)))

    def _single(self, namespace: str, number: int) -> Gang:
        name = f"p{number}"
        task = self._task(f"{namespace}/{name}", f"{namespace}/{IMPLICIT_PREFIX}{name}")
        queue = self._draw(st.sampled_from(self._queue_names))
        priority = task.priority + self._draw(st.sampled_from([0, 0, 1]))
        gang = implicit_gang(task, queue, priority, self._draw(labels("sla", "note")))
        waits = self._draw(st.just(gang.created_ms) | times_ms())
        return replace(gang, waiting_since_ms=waits)

    def _draw_strangers(self) -> None:
        count = self._draw(st.integers(0, self._sizes.strangers)) if self._nodes else 0
        for i in range(count):
            namespace = self._draw(st.sampled_from(NAMESPACES))
            self._task(f"{namespace}/other{i}", "", _PLACED)

    def _task(self, key: str, gang: str, statuses: Sequence[TaskStatus] = ()) -> Task:
        possible = statuses or (*_PENDING, *_PENDING, *_PLACED, *_FINISHED)
        usable = [s for s in possible if self._nodes or not s.holds_resources]
        status = self._draw(st.sampled_from(usable))
        namespace = key.partition("/")[0]
        usable_claims = [c for c in self._claims if c.startswith(f"{namespace}/")]
        task = Task(
            key=key,
            shape=self._draw(self._shape or shapes(namespace, [*usable_claims, f"{namespace}/z"])),
            status=status,
            uid=self._draw(st.sampled_from(["", f"uid-{key}"])),
            gang=gang,
            role=self._draw(st.sampled_from(ROLES)),
            index=self._draw(st.integers(-1, 3)),
            priority=self._draw(st.integers(-1, 2)),
            created_ms=self._draw(times_ms()),
            labels=self._draw(labels()),
            node=self._node_of(status),
            nominated_node=self._draw(st.sampled_from(["", "n0"])),
            preemptable=self._draw(st.booleans()),
            started_ms=self._draw(times_ms()),
            saved_ms=self._draw(times_ms()),
            cooldown_ms=self._draw(st.sampled_from([0, 1500])),
            owner=self._draw(st.sampled_from(["", "uid-owner"])),
            is_movable=self._draw(st.booleans()),
            estimate_ms=self._draw(st.sampled_from([0, 0, 2500])),
            wants=self._draw(st.sampled_from(_WANTS)),
            gate=self._gate_of(status),
            problem=self._draw(problems(ReasonCode.INVALID_POD)),
        )
        self._tasks.append(task)
        return task

    def _gate_of(self, status: TaskStatus) -> QueueGate:
        is_pending = status is TaskStatus.PENDING
        return self._draw(st.sampled_from(QueueGate)) if is_pending else QueueGate.NONE

    def _node_of(self, status: TaskStatus) -> str:
        if status in _PENDING or not self._nodes:
            return ""
        return self._draw(st.sampled_from(self._nodes))

    def _node(self, name: str) -> Node:
        here = sorted(
            (t for t in self._tasks if t.node == name and t.status.holds_resources),
            key=lambda task: task.key,
        )
        room = dict(self._draw(some_amounts(16, 0)))
        taken = {**total(task.shape.request for task in here), PODS: len(here)}
        pods = self._draw(st.integers(0, 5))
        offered = {r: n + room.get(r, 0) for r, n in taken.items()}
        model = self._draw(st.sampled_from(["", "T4"]))
        return Node(
            name=name,
            allocatable=amounts({**room, **offered, PODS: len(here) + pods}),
            labels={
                HOST: name,
                **self._draw(labels("app", ZONE)),
                **({GPU_MODEL_LABEL: model} if model else {}),
            },
            taints=tuple(self._draw(st.lists(taints(), max_size=1))),
            ready=self._draw(st.sampled_from([True, True, True, False])),
            unschedulable=self._draw(st.sampled_from([False, False, False, True])),
            gpu_model=model,
            residents=tuple(here),
            load=self._draw(st.none() | loads()),
            store=self._draw(st.sampled_from(_STORES)),
            attach_limits=self._draw(st.sampled_from(_ATTACH_LIMITS)),
        )


def loads() -> st.SearchStrategy[Load]:
    """Draw measured loads, which sometimes exceed the capacity of the node."""
    ppm = st.integers(0, 1_100_000)
    return st.builds(Load, ppm, ppm, times_ms())


@st.composite
def _groups(draw: DrawFn, key: str, queue: str, members: tuple[Task, ...]) -> Gang:
    created_ms = draw(times_ms())
    roles = draw(st.dictionaries(st.sampled_from(ROLES[1:]), st.integers(1, 2), max_size=2))
    return Gang(
        key=key,
        queue=queue,
        uid=draw(st.sampled_from(["", f"uid-{key}"])),
        min_member=draw(st.integers(0, len(members) + 1)),
        min_role=tuple(sorted(roles.items())),
        min_resources=draw(st.just(()) | some_amounts()),
        priority=draw(st.integers(-2, 2)),
        created_ms=created_ms,
        waiting_since_ms=draw(st.just(created_ms) | times_ms()),
        phase=draw(st.sampled_from(list(GangPhase))),
        tasks=tuple(sorted(members, key=lambda task: task.order)),
        annotations=draw(labels("note", "volcano.sh/preemptable")),
        topology=draw(st.none() | topology_requests()),
        sub_groups=tuple(draw(st.lists(sub_group_rules(), max_size=2))),
        problem=draw(problems(ReasonCode.INVALID_POD_GROUP)),
    )


@st.composite
def snapshots(
    draw: DrawFn,
    sizes: Sizes = Sizes(),
    shape: SearchStrategy[TaskShape] | None = None,
) -> Snapshot:
    """Draw a small cluster with tasks of the shape `shape`, by default any shape."""
    return _Cluster(draw, sizes, shape).snapshot()
