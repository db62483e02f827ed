"""Volcano's plugins by name: their arguments, and the rules that each of them brings.

A plugin may bring several rules: `predicates` is one per kind of predicate, `proportion` and
`capacity` come with ceilings and floors of queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from optsched.plugins.devices.device_claims import DeviceClaims
from optsched.plugins.devices.deviceshare import DeviceShare, Prefers
from optsched.plugins.devices.fragmentation import Fragmentation
from optsched.plugins.devices.numa_aware import NumaAware, NumaPolicies
from optsched.plugins.devices.proportions import KeptPerDevice, Proportions
from optsched.plugins.eviction.conformance import Conformance
from optsched.plugins.eviction.rescheduling import AMOUNTS, LowNodeUtilization, Rescheduling
from optsched.plugins.eviction.victims import Budgets, Cooldown
from optsched.plugins.external.extender import Extender, Service
from optsched.plugins.external.outside import Verb
from optsched.plugins.faces import Face
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.gangs.overcommit import Overcommit
from optsched.plugins.gangs.resourcequota import ResourceQuota
from optsched.plugins.gangs.sub_groups import SubGroups
from optsched.plugins.nodes.host_ports import HostPorts
from optsched.plugins.nodes.node_affinity import NodeAffinity
from optsched.plugins.nodes.nodegroup import NodeGroup
from optsched.plugins.nodes.taints import Taints
from optsched.plugins.nodes.tdm import Tdm
from optsched.plugins.nodes.usage import Estimate, Usage
from optsched.plugins.ordering.finish_time_fair import FinishTimeFair
from optsched.plugins.ordering.priority import Priority
from optsched.plugins.ordering.shortest_remaining import ShortestRemaining
from optsched.plugins.ordering.sla import Sla
from optsched.plugins.scores.binpack import Binpack
from optsched.plugins.scores.nodeorder import NodeOrder
from optsched.plugins.scores.strategy_fit import DEFAULT, Share, Strategy, StrategyFit
from optsched.plugins.shares.capability import Capability
from optsched.plugins.shares.capacity import Capacity
from optsched.plugins.shares.drf import Drf
from optsched.plugins.shares.guarantee import Guarantee
from optsched.plugins.shares.hdrf import HierarchicalDrf
from optsched.plugins.shares.leaf_queues import LeafQueues
from optsched.plugins.shares.lending import LEND_IDLE
from optsched.plugins.shares.over_time import OverTime
from optsched.plugins.shares.proportion import Proportion
from optsched.plugins.storage.data_locality import DataLocality
from optsched.plugins.storage.volume_fill import VolumeFill
from optsched.plugins.storage.volume_limits import VolumeLimits
from optsched.plugins.storage.volume_zone import VolumeZone
from optsched.plugins.storage.volumes import Volumes
from optsched.plugins.topology.network_topology import NetworkTopology
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.topology.spread import Spread
from optsched.plugins.topology.task_topology import TaskTopology
from optsched.units import CPU, MEMORY, parse_amount, parse_duration_ms, parse_hours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.plugins.extension_points import Rule

Value: TypeAlias = bool | int | float | str


class Kind(Enum):
    """What an argument's value may be."""

    SWITCH = "true or false"
    WHOLE = "a whole number"
    DURATION = "a duration such as 90s or 1h30m"
    HOURS = "hours of the day such as 8:30-18:00"
    NUMBER = "a number"
    QUANTITY = "a quantity such as 250m or 200Mi"
    NAMES = "resource names with commas between them"
    TEXT = "a text"
    URL = "an address that begins with http:// or https://"
    CHOICE = "one of some words"
    MAPPING = "a mapping of further arguments"
    LIST = "a list of such mappings"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a plugin; a name that ends in `*` stands for all that begin so.

    Attributes
    ----------
    least
        The smallest number that is accepted; None without one.
    fields
        Of a mapping. What it holds is told by dotted names: `sra.enable`. Of a list, those of each
        entry: `strategies.0.name`.
    choices
        The words of which one may be chosen.

    """

    name: str
    kind: Kind
    default: Value
    meaning: str
    least: float | None = 0
    fields: tuple[Argument, ...] = ()
    choices: tuple[str, ...] = ()

    def accepts(self, name: str) -> bool:
        """Whether an argument of this name is meant."""
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1]) and len(name) >= len(self.name)
        return name == self.name


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that a configuration may name.

    Attributes
    ----------
    name
        What configurations call it: lower-case words with hyphens between them.
    meaning
        What it is for, in a few words; `optsched` shows it beside the name.
    arguments
        What a configuration may tell it; everything else is refused there with its line.
    build
        Makes its rules from checked arguments, among them whether `enableHierarchy` and
        `enableReclaimable` are on.
    origin
        The file or package that it comes from; empty for those that come along.

    """

    name: str
    meaning: str
    arguments: tuple[Argument, ...]
    build: Callable[[Mapping[str, Value]], tuple[Rule, ...]]
    origin: str = ""


_ENABLE = "predicate.{}Enable"
_PREDICATES: tuple[tuple[str, type[Rule]], ...] = (
    ("NodeAffinity", NodeAffinity),
    ("TaintToleration", Taints),
    ("NodePorts", HostPorts),
    ("VolumeBinding", Volumes),
    ("VolumeZone", VolumeZone),
    ("NodeVolumeLimits", VolumeLimits),
    ("PodAffinity", PodAffinity),
    ("PodTopologySpread", Spread),
    ("DynamicResourceAllocation", DeviceClaims),
)


_BINDING = "volumebinding."


def _predicates(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    chosen = [rule for name, rule in _PREDICATES if arguments.get(_ENABLE.format(name), True)]
    patience_s = _whole_argument(arguments, f"{_BINDING}bindTimeoutSeconds", 600)
    rules = (Volumes(patience_s) if rule is Volumes else rule() for rule in chosen)
    fill, weight = _fill(arguments), _whole_argument(arguments, f"{_BINDING}weight", 1)
    scores = Volumes in chosen and fill and weight
    return (*rules, VolumeFill(fill, weight)) if scores else tuple(rules)


def _fill(arguments: Mapping[str, Value]) -> tuple[tuple[int, int], ...]:
    """(how full, points) as listed, by how full."""
    prefix = f"{_BINDING}shape."
    entries: dict[int, dict[str, int]] = {}
    for name, value in arguments.items():
        if name.startswith(prefix):
            number, _, part = name.removeprefix(prefix).partition(".")
            entries.setdefault(int(number), {})[part.lower()] = int(value)
    points = ((e.get("utilization", 0), e.get("score", 0)) for e in entries.values())
    return tuple(sorted(points))


def _binpack(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    weights = {CPU: _whole_argument(arguments, "binpack.cpu", 1)}
    weights[MEMORY] = _whole_argument(arguments, "binpack.memory", 1)
    for name in str(arguments.get("binpack.resources", "")).split(","):
        if name.strip():
            weights[name.strip()] = _whole_argument(
                arguments, f"binpack.resources.{name.strip()}", 1
            )
    return (Binpack(_whole_argument(arguments, "binpack.weight", 1), weights),)


def _nodeorder(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    return (
        NodeOrder(
            least_requested=_whole_argument(arguments, "leastrequested.weight", 1),
            most_requested=_whole_argument(arguments, "mostrequested.weight", 0),
            balanced_resource=_whole_argument(arguments, "balancedresource.weight", 1),
            node_affinity=_whole_argument(arguments, "nodeaffinity.weight", 2),
            taint_toleration=_whole_argument(arguments, "tainttoleration.weight", 3),
            pod_affinity=_whole_argument(arguments, "podaffinity.weight", 2),
            topology_spread=_whole_argument(arguments, "podtopologyspread.weight", 2),
            image_locality=_whole_argument(arguments, "imagelocality.weight", 1),
        ),
    )


def _capacity(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    rules = (
        *_over_time(arguments, keeps_deserved=True),
        Capacity(_whole_argument(arguments, "ancestorReclaimLevel", 0)),
        Capability(),
        Guarantee(),
    )
    return (*rules, LeafQueues()) if arguments.get(Face.HIERARCHY.value, False) else rules


def _drf(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    if not arguments.get(Face.HIERARCHY.value, False):
        return (*_over_time(arguments), Drf())
    return (
        HierarchicalDrf(
            reclaims=bool(arguments.get(Face.RECLAIMABLE.value, True)),
            half_life_ms=_duration_ms(arguments, HALF_LIFE) or 0,
        ),
    )


HALF_LIFE = "usage.halfLife"


def _over_time(arguments: Mapping[str, Value], *, keeps_deserved: bool = False) -> tuple[Rule, ...]:
    half_life_ms = _duration_ms(arguments, HALF_LIFE)
    if half_life_ms is None:
        return ()
    return (OverTime(half_life_ms, keeps_deserved=keeps_deserved),)


def _nodegroup(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    return (
        NodeGroup(
            strict=bool(arguments.get("strict", True)),
            in_order=bool(arguments.get("enablePreferredOrder", False)),
            inherits=bool(arguments.get(Face.HIERARCHY.value, False)),
        ),
    )


_ZONE = "tdm.revocable-zone."


def _tdm(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    zones = {
        name.removeprefix(_ZONE): parse_hours(text)
        for name, text in arguments.items()
        if name.startswith(_ZONE)
    }
    return (Tdm(zones, _duration_ms(arguments, "tdm.evict.period") or 60_000),)


_LOW_NODES = "lowNodeUtilization"
_SYSTEM_CLASS = "system-cluster-critical"


def _rescheduling(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    named = (k for k, v in arguments.items() if k.endswith(".name") and v == _LOW_NODES)
    prefix = next(named, "strategies.0.name").removesuffix("name") + "params."
    strategy = LowNodeUtilization(
        low_ppm=_thresholds(arguments, f"{prefix}thresholds"),
        high_ppm=_thresholds(arguments, f"{prefix}targetThresholds"),
        below_class=str(arguments.get(f"{prefix}thresholdPriorityClassName", _SYSTEM_CLASS)),
        fits=bool(arguments.get(f"{prefix}nodeFit", True)),
    )
    return (
        Rescheduling(
            strategy,
            period_ms=_duration_ms(arguments, "interval") or 300_000,
            fresh_ms=_duration_ms(arguments, "metricsPeriod") or 300_000,
        ),
    )


def _thresholds(arguments: Mapping[str, Value], prefix: str) -> dict[str, int]:
    return {r: round(float(arguments.get(f"{prefix}.{r}", 100)) * 10_000) for r in AMOUNTS}


def _usage(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    risk, idle = "estimator.risk_", "estimator.best_effort."
    return (
        Usage(
            weight=_whole_argument(arguments, "usage.weight", 5),
            cpu_weight=_whole_argument(arguments, "cpu.weight", 1),
            memory_weight=_whole_argument(arguments, "memory.weight", 1),
            cpu_limit_ppm=round(float(arguments.get("thresholds.cpu", 80)) * 10_000),
            memory_limit_ppm=round(float(arguments.get("thresholds.mem", 80)) * 10_000),
            estimate=Estimate(
                of_request=float(arguments.get("estimator.request_ratio", 0.7)),
                of_burst=float(arguments.get("estimator.burst_ratio", 0)),
                risky_from=float(arguments.get(f"{risk}threshold", 0.6)),
                risk_factor=float(arguments.get(f"{risk}factor", 1.2)),
                idle_cpu_m=parse_amount(CPU, arguments.get(f"{idle}cpu", "250m")),
                idle_memory=parse_amount(MEMORY, arguments.get(f"{idle}mem", "200Mi")),
            ),
            blind_ms=_duration_ms(arguments, "metrics.interval") or 30_000,
        ),
    )


GIGABYTE = 10**9


def _strategy_fit(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    sra, weights = bool(arguments.get("sra.enable", False)), "sra.resourceWeight."
    fit = StrategyFit(
        weight=_whole_argument(arguments, "resourceStrategyFitWeight", 10),
        shares=_shares(arguments),
        scarce=tuple(
            (name, _whole_argument(arguments, f"{weights}{name}", 1))
            for name in _names(arguments, "sra.resources")
        ),
        scarce_weight=_whole_argument(arguments, "sra.weight", 1) if sra else 0,
    )
    if not arguments.get("proportional.enable", False):
        return (fit,)
    kept = (_kept_per_device(arguments, n) for n in _names(arguments, "proportional.resources"))
    return (fit, Proportions(tuple(kept)))


def _shares(arguments: Mapping[str, Value]) -> tuple[tuple[str, Share], ...]:
    prefix = "resources."
    own = [name.removeprefix(prefix) for name in arguments if name.startswith(prefix)]
    names = dict.fromkeys(name.rpartition(".")[0] for name in own)
    return (
        tuple(
            (
                name,
                Share(
                    Strategy(str(arguments.get(f"{prefix}{name}.type", Strategy.LEAST))),
                    _whole_argument(arguments, f"{prefix}{name}.weight", 1),
                ),
            )
            for name in names
        )
        or DEFAULT
    )


def _kept_per_device(arguments: Mapping[str, Value], device: str) -> KeptPerDevice:
    prefix = f"proportional.resourceProportion.{device}"
    cpus, gigabytes = (float(arguments.get(f"{prefix}.{r}", 1)) for r in (CPU, MEMORY))
    return KeptPerDevice(device, round(cpus * 1000), round(gigabytes * GIGABYTE))


def _names(arguments: Mapping[str, Value], name: str) -> list[str]:
    listed = str(arguments.get(name, "")).split(",")
    return [part.strip() for part in listed if part.strip()]


def _duration_ms(arguments: Mapping[str, Value], name: str) -> int | None:
    return parse_duration_ms(str(arguments[name])) if name in arguments else None


def _whole_argument(arguments: Mapping[str, Value], name: str, default: int) -> int:
    return int(arguments.get(name, default))


def _weight(name: str, default: int, meaning: str) -> Argument:
    return Argument(name, Kind.WHOLE, default, meaning)


def _switch(name: str, meaning: str, *, default: bool = True) -> Argument:
    return Argument(name, Kind.SWITCH, default, meaning)


def _duration(name: str, default: str, meaning: str) -> Argument:
    return Argument(name, Kind.DURATION, default, meaning)


def _mapping(name: str, meaning: str, *fields: Argument) -> Argument:
    return Argument(name, Kind.MAPPING, "", meaning, fields=fields)


def _choice(name: str, default: str, meaning: str, choices: tuple[str, ...]) -> Argument:
    return Argument(name, Kind.CHOICE, default, meaning, choices=choices)


def _percents(name: str, meaning: str) -> Argument:
    parts = (Argument(r, Kind.NUMBER, 100, f"of {r}, in percent") for r in AMOUNTS)
    return _mapping(name, meaning, *parts)


def _topology(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    prefix = "hypernode.binpack"
    weights = {CPU: _whole_argument(arguments, f"{prefix}.cpu", 1)}
    weights[MEMORY] = _whole_argument(arguments, f"{prefix}.memory", 1)
    for name in str(arguments.get(f"{prefix}.resources", "")).split(","):
        if name.strip():
            weights[name.strip()] = _whole_argument(
                arguments, f"{prefix}.resources.{name.strip()}", 1
            )
    return (
        NetworkTopology(
            weight=_whole_argument(arguments, "weight", 1),
            resources=weights,
            packs_others=bool(arguments.get(f"{prefix}.normal-pod.enable", True)),
            fading=float(arguments.get(f"{prefix}.normal-pod.fading", 0.8)),
            most_cleared=_whole_argument(arguments, "hypernode.gradient.evict.max-hypernodes", 8),
        ),
    )


_SHARE = "deviceshare."


_EXCLUSIVE = f"{_SHARE}GPUExclusiveRules"


def _deviceshare(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    return (
        DeviceShare(
            by_memory=bool(arguments.get(f"{_SHARE}GPUSharingEnable", False)),
            by_number=bool(arguments.get(f"{_SHARE}GPUNumberEnable", False)),
            by_vgpu=bool(arguments.get(f"{_SHARE}VGPUEnable", False)),
            by_npu=bool(arguments.get(f"{_SHARE}AscendHAMiVNPUEnable", False)),
            prefers=Prefers(str(arguments.get(f"{_SHARE}SchedulePolicy", Prefers.NONE))),
            weight=_whole_argument(arguments, f"{_SHARE}ScheduleWeight", 0),
            geometries_in=(
                str(arguments.get(f"{_SHARE}KnownGeometriesCMNamespace", "kube-system")),
                str(arguments.get(f"{_SHARE}KnownGeometriesCMName", "volcano-vgpu-device-config")),
            ),
            locks_nodes=bool(arguments.get(f"{_SHARE}NodeLockEnable", False)),
            exclusive=_exclusive(arguments),
        ),
    )


def _exclusive(arguments: Mapping[str, Value]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The labels of each entry of the list, in order."""
    entries: dict[int, dict[str, str]] = {}
    for name, value in arguments.items():
        if name.startswith(f"{_EXCLUSIVE}."):
            number, _, label = name.removeprefix(f"{_EXCLUSIVE}.").partition(".")
            entries.setdefault(int(number), {})[label] = str(value)
    return tuple(tuple(sorted(entries[number].items())) for number in sorted(entries))


_CALLS = (
    (Verb.PREDICATE, "which nodes a task may use"),
    (Verb.PRIORITIZE, "points of nodes for a task"),
    (Verb.PREEMPTABLE, "who may go for a more important task (without the solver)"),
    (Verb.RECLAIMABLE, "who may go for a task of another queue (without the solver)"),
    (Verb.QUEUE_OVERUSED, "whether a queue gets nothing more (without the solver)"),
    (Verb.JOB_ENQUEUEABLE, "whether the pods of a gang may be created"),
    (Verb.JOB_ENQUEUED, "told that they may"),
    (Verb.JOB_READY, "whether a gang may start (without the solver)"),
    (Verb.SESSION_OPEN, "told of the whole cluster as a session begins"),
    (Verb.SESSION_CLOSE, "told that it has ended"),
    (Verb.ALLOCATE, "told of every task that is placed"),
    (Verb.DEALLOCATE, "told of every task that is evicted"),
)


def _extender(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    paths = ((verb, str(arguments.get(f"extender.{verb}Verb", ""))) for verb, _ in _CALLS)
    return (
        Extender(
            service=Service(
                str(arguments.get("extender.urlPrefix", "")),
                _duration_ms(arguments, "extender.httpTimeout") or 1000,
            ),
            paths=tuple((verb, path.strip("/")) for verb, path in paths if path.strip("/")),
            ignorable=bool(arguments.get("extender.ignorable", False)),
            managed=tuple(_names(arguments, "extender.managedResources")),
        ),
    )


_HALF_LIFE = _duration(HALF_LIFE, "", "what queues have used counts, half as much after so long")

_LENDING = "idle capacity is lent to gangs whose queues are reclaimable, beyond what these deserve"

_STRATEGY = (
    _choice("name", _LOW_NODES, "has no effect: there is this one", (_LOW_NODES,)),
    _mapping(
        "params",
        "of the strategy",
        _percents("thresholds", "nodes take pods while nothing of them is in use above"),
        _percents("targetThresholds", "nodes give pods while anything of them is in use above"),
        Argument(
            "thresholdPriorityClassName",
            Kind.NAMES,
            _SYSTEM_CLASS,
            "pods of this PriorityClass and above stay",
        ),
        _switch("nodeFit", "only pods go for which there is a node that takes them"),
    ),
)

_ALL = (
    Plugin("gang", "gangs start together or not at all", (), lambda _: (Gang(), SubGroups())),
    Plugin("priority", "more important gangs first", (), lambda _: (Priority(),)),
    Plugin(
        "conformance",
        "system pods first, and never evicted",
        (),
        lambda _: (Conformance(),),
    ),
    Plugin("cdp", "a cooldown before eviction", (), lambda _: (Cooldown(),)),
    Plugin("pdb", "disruption budgets", (), lambda _: (Budgets(),)),
    Plugin("drf", "gangs with a small dominant share first", (_HALF_LIFE,), _drf),
    Plugin(
        "proportion",
        "queues share the cluster by weight",
        (_HALF_LIFE, _switch(LEND_IDLE, _LENDING, default=False)),
        lambda a: (
            *_over_time(a),
            Proportion(lends=bool(a.get(LEND_IDLE, False))),
            Capability(),
            Guarantee(),
        ),
    ),
    Plugin(
        "capacity",
        "queues deserve fixed parts and may borrow beyond them",
        (
            _HALF_LIFE,
            _weight("ancestorReclaimLevel", 0, "levels of ancestors that reclaim looks at"),
            _switch(
                "capacity.DynamicResourceAllocationEnable",
                "has no effect: devices of claims always count where a queue names their class",
            ),
            _switch("capacity.DRAConsumableCapacityEnable", "has no effect, for the same reason"),
        ),
        _capacity,
    ),
    Plugin(
        "predicates",
        "what kube-scheduler filters nodes by",
        (
            *(_switch(_ENABLE.format(n), f"the rule {r.name}") for n, r in _PREDICATES),
            _switch("predicate.CacheEnable", "has no effect: masks are always kept", default=False),
            _switch("predicateErrorCacheEnable", "has no effect: failures are kept by class"),
            _weight("volumebinding.weight", 1, "weight of the score that the shape gives"),
            _weight("volumebinding.bindTimeoutSeconds", 600, "longest wait for volumes"),
            Argument(
                "volumebinding.shape",
                Kind.LIST,
                "",
                "points by how full the chosen volumes get; no score without",
                fields=(
                    _weight("utilization", 0, "how full, in percent"),
                    _weight("score", 0, "points of ten"),
                ),
            ),
            _weight("dynamicresources.filterTimeoutSeconds", 10, "has no effect"),
        ),
        _predicates,
    ),
    Plugin(
        "nodeorder",
        "prefers nodes by load, balance and affinity",
        (
            _weight("leastrequested.weight", 1, "free nodes"),
            _weight("mostrequested.weight", 0, "busy nodes"),
            _weight("nodeaffinity.weight", 2, "preferred node affinity"),
            _weight("podaffinity.weight", 2, "preferred pod affinity"),
            _weight("balancedresource.weight", 1, "CPU and memory in balance"),
            _weight("tainttoleration.weight", 3, "few soft taints"),
            _weight("imagelocality.weight", 1, "images already there"),
            _weight("podtopologyspread.weight", 2, "soft topology spread"),
        ),
        _nodeorder,
    ),
    Plugin(
        "binpack",
        "fills nodes that are in use",
        (
            _weight("binpack.weight", 1, "weight of the whole score"),
            _weight("binpack.cpu", 1, "weight of CPU"),
            _weight("binpack.memory", 1, "weight of memory"),
            Argument("binpack.resources", Kind.NAMES, "", "further resources that count"),
            _weight("binpack.resources.*", 1, "weight of one of them"),
        ),
        _binpack,
    ),
    Plugin(
        "overcommit",
        "how much more than the cluster holds may be enqueued",
        (Argument("overcommit-factor", Kind.NUMBER, 1.2, "times the cluster's total", least=1),),
        lambda a: (Overcommit(float(a.get("overcommit-factor", 1.2))),),
    ),
    Plugin(
        "resourcequota",
        "namespaces let in what their ResourceQuotas have room for",
        (),
        lambda _: (ResourceQuota(),),
    ),
    Plugin(
        "sla",
        "longest waiting times",
        (_duration("sla-waiting-time", "", "of gangs that do not say it themselves"),),
        lambda a: (Sla(_duration_ms(a, "sla-waiting-time")),),
    ),
    Plugin(
        "tdm",
        "nodes lent at certain hours",
        (
            Argument("tdm.revocable-zone.*", Kind.HOURS, "", "when a zone is open, in UTC"),
            _duration("tdm.evict.period", "1m", "shortest time between two evictions by shuffle"),
        ),
        _tdm,
    ),
    Plugin(
        "rescheduling",
        "moves pods off busy nodes, with the action shuffle",
        (
            _duration("interval", "5m", "shortest time between two evictions"),
            _duration("metricsPeriod", "5m", "how old measured load may be"),
            Argument("strategies", Kind.LIST, "", "what is looked at", fields=_STRATEGY),
        ),
        _rescheduling,
    ),
    Plugin(
        "usage",
        "measured load of nodes",
        (
            _weight("usage.weight", 5, "weight of the whole score"),
            _weight("cpu.weight", 1, "weight of CPU in it"),
            _weight("memory.weight", 1, "weight of memory in it"),
            _mapping(
                "thresholds",
                "load above which nodes take nothing more, in percent",
                Argument("cpu", Kind.NUMBER, 80, "of CPU"),
                Argument("mem", Kind.NUMBER, 80, "of memory"),
            ),
            _mapping(
                "estimator",
                "what pods are taken to use before that shows in measurements",
                Argument("request_ratio", Kind.NUMBER, 0.7, "part of the request"),
                Argument("burst_ratio", Kind.NUMBER, 0, "part of what limits allow beyond"),
                Argument("risk_threshold", Kind.NUMBER, 0.6, "load that raises estimates, of one"),
                Argument("risk_factor", Kind.NUMBER, 1.2, "by how much it does", least=1),
                _mapping(
                    "best_effort",
                    "pods that request nothing",
                    Argument("cpu", Kind.QUANTITY, "250m", "CPU that they use"),
                    Argument("mem", Kind.QUANTITY, "200Mi", "memory that they use"),
                ),
            ),
        ),
        _usage,
    ),
    Plugin(
        "task-topology",
        "affinity between the roles of a job",
        (_weight("task-topology.weight", 1, "weight of the score"),),
        lambda a: (TaskTopology(_whole_argument(a, "task-topology.weight", 1)),),
    ),
    Plugin(
        "nodegroup",
        "queues bound to groups of nodes",
        (
            _switch("strict", "queues that name no group get no node without a group either"),
            _switch("enablePreferredOrder", "preferred groups in their order", default=False),
        ),
        _nodegroup,
    ),
    Plugin(
        "resource-strategy-fit",
        "fills nodes in some resources and spreads in others",
        (
            _weight("resourceStrategyFitWeight", 10, "weight of the strategies"),
            _mapping(
                "resources",
                "how resources count, without it CPU and memory; * ends a name that stands for all",
                _mapping(
                    "*",
                    "a resource",
                    _choice("type", Strategy.LEAST, "what makes a node good", tuple(Strategy)),
                    Argument("weight", Kind.WHOLE, 1, "weight of the resource", least=1),
                ),
            ),
            _mapping(
                "sra",
                "leaves nodes with scarce resources to those who need them",
                _switch("enable", "whether it does", default=False),
                Argument("resources", Kind.NAMES, "", "the scarce resources"),
                _weight("weight", 1, "weight of the whole"),
                _mapping("resourceWeight", "by resource", _weight("*", 1, "weight of a resource")),
            ),
            _mapping(
                "proportional",
                "keeps CPU and memory for idle devices",
                _switch("enable", "whether it does", default=False),
                Argument("resources", Kind.NAMES, "", "the devices"),
                _mapping(
                    "resourceProportion",
                    "what goes with one device",
                    Argument("*", Kind.NUMBER, 1, "DEVICE.cpu in CPUs, DEVICE.memory in GB"),
                ),
            ),
        ),
        _strategy_fit,
    ),
    Plugin(
        "network-topology-aware",
        "gangs stay together in the network",
        (
            _weight("weight", 1, "weight of all its scores"),
            _weight("hypernode.binpack.cpu", 1, "weight of CPU in scores of HyperNodes"),
            _weight("hypernode.binpack.memory", 1, "weight of memory in them"),
            Argument("hypernode.binpack.resources", Kind.NAMES, "", "further resources in them"),
            _weight("hypernode.binpack.resources.*", 1, "weight of one of those"),
            _switch("hypernode.binpack.normal-pod.enable", "HyperNodes in use first for all pods"),
            Argument(
                "hypernode.binpack.normal-pod.fading",
                Kind.NUMBER,
                0.8,
                "times so much with every tier upwards",
            ),
            _weight(
                "hypernode.gradient.evict.max-hypernodes",
                8,
                "HyperNodes in which room is made for a gang, the largest first",
            ),
        ),
        _topology,
    ),
    Plugin(
        "deviceshare",
        "GPUs and NPUs shared by memory and cores",
        (
            _switch(f"{_SHARE}GPUSharingEnable", "volcano.sh/gpu-memory counts", default=False),
            _switch(f"{_SHARE}GPUNumberEnable", "volcano.sh/gpu-number counts", default=False),
            _switch(f"{_SHARE}VGPUEnable", "volcano.sh/vgpu-* count", default=False),
            _choice(
                f"{_SHARE}SchedulePolicy",
                Prefers.NONE,
                "what makes a node good: GPUs in use or idle ones",
                (Prefers.BINPACK, Prefers.SPREAD),
            ),
            _weight(f"{_SHARE}ScheduleWeight", 0, "weight of that"),
            _switch(
                f"{_SHARE}NodeLockEnable",
                "binds one pod with vGPUs of a node after the other",
                default=False,
            ),
            _switch(
                f"{_SHARE}AscendMindClusterVNPUEnable",
                "an error: no node reports these NPUs itself",
                default=False,
            ),
            _switch(
                f"{_SHARE}AscendHAMiVNPUEnable",
                "huawei.com/Ascend* and its memory count, by templates",
                default=False,
            ),
            Argument(
                f"{_SHARE}KnownGeometriesCMName",
                Kind.TEXT,
                "volcano-vgpu-device-config",
                "the ConfigMap that says how MIG may cut GPUs and templates NPUs",
            ),
            Argument(
                f"{_SHARE}KnownGeometriesCMNamespace", Kind.TEXT, "kube-system", "its namespace"
            ),
            Argument(
                _EXCLUSIVE,
                Kind.LIST,
                "",
                "labels: pods with all of an entry share no vGPU among them",
                fields=(Argument("*", Kind.TEXT, "", "the value of this label"),),
            ),
        ),
        _deviceshare,
    ),
    Plugin(
        "extender",
        "a service outside has its say",
        (
            Argument("extender.urlPrefix", Kind.URL, "", "where the service is"),
            _duration("extender.httpTimeout", "1s", "longest time for one call"),
            *(
                Argument(f"extender.{verb}Verb", Kind.TEXT, "", f"path: {meaning}")
                for verb, meaning in _CALLS
            ),
            _switch("extender.ignorable", "no say while it does not answer", default=False),
            Argument("extender.managedResources", Kind.NAMES, "", "only who asks for one of them"),
        ),
        _extender,
    ),
    Plugin(
        "numa-aware",
        "pods get CPUs and GPUs of as few NUMA nodes as they ask for",
        (_weight("weight", 1, "weight of the score"),),
        lambda a: (NumaPolicies(), NumaAware(_whole_argument(a, "weight", 1))),
    ),
    Plugin(
        "data-locality",
        "prefers nodes that hold the data sets of tasks",
        (_weight("data-locality.weight", 1, "weight of the score"),),
        lambda a: (DataLocality(_whole_argument(a, "data-locality.weight", 1)),),
    ),
    Plugin(
        "fragmentation",
        "leaves free GPUs where typical tasks can use them",
        (_weight("fragmentation.weight", 1, "points for a thousandth of a GPU"),),
        lambda a: (Fragmentation(_whole_argument(a, "fragmentation.weight", 1)),),
    ),
    Plugin(
        "shortest-remaining",
        "gangs first that say they end soon",
        (),
        lambda _: (ShortestRemaining(),),
    ),
    Plugin(
        "finish-time-fair",
        "gangs first that will end the latest against a fair part of their own",
        (),
        lambda _: (FinishTimeFair(),),
    ),
)

PLUGINS: dict[str, Plugin] = {p.name: p for p in _ALL}

ALIASES = {"numaaware": "numa-aware", "networktopologyaware": "network-topology-aware"}
"""Other spellings that Volcano's documentation uses (users.md, G27)."""

JOB_PLUGINS = ("svc", "ssh", "env", "tensorflow", "pytorch", "mpi", "ray", "hcclrank")
"""Plugins of jobs that people list among the scheduler's by mistake."""
