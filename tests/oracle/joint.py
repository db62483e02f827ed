"""Solve an independent joint model of gang starts, placements and evictions.

The model follows the documentation (docs/certificate.md, preemption.md, queues.md and
models/formulation). It imports nothing of optsched. Its input is manifests and a model file, and
its output is a plan. It runs in a separate process and reads one request per line:

    {"document": List, "policy": a model file, parsed, "barred": [[task, …], …], "evict": true}

A request may name gangs and victims with "started": [gang, …] and "evicted": [task, …]. Then the
reply is the total value of these gangs, and an upper bound on the value of every plan.

The plans of this model are proposals, and the project's verifier decides whether a proposal counts.
Therefore a constraint that is too loose here costs one try, and a constraint that is too tight
hides a better plan. Neither mistake causes a finding by itself. For the same reason, shares are
computed with floating point.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from itertools import product
from math import ceil, gcd
from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Amounts = dict[str, int]
BILLION = 10**9
_SUFFIXES = {"Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_VGPU, _VMEM, _VCORES = (
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
)
_CARDS = (_VGPU, _VMEM, _VCORES)


def _amount(resource: str, text: str) -> int:
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    if text.endswith("m"):
        return int(text[:-1])
    return int(text) * (1000 if resource == "cpu" else 1)


def _amounts(given: Mapping[str, str] | None) -> Amounts:
    return {r: _amount(r, str(a)) for r, a in (given or {}).items()}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@dataclass
class _Pod:
    key: str
    gang: str
    request: Amounts
    node: str
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    is_spared: bool

    @property
    def ports(self) -> list[int]:
        containers = self.spec["containers"]
        return [p["hostPort"] for c in containers for p in c.get("ports", ())]

    @property
    def apart(self) -> list[tuple[str, str]]:
        """The pairs of topology key and app of the pod's anti-affinity."""
        terms = (
            self.spec.get("affinity", {})
            .get("podAntiAffinity", {})
            .get("requiredDuringSchedulingIgnoredDuringExecution", ())
        )
        return [(t["topologyKey"], t["labelSelector"]["matchLabels"]["app"]) for t in terms]

    @property
    def kind(self) -> str:
        """A text that is equal for pods of one task class."""
        parts = ("nodeSelector", "affinity", "tolerations")
        told = {part: self.spec.get(part) for part in parts}
        return json.dumps([self.request, told, self.ports, dict(self.labels)], sort_keys=True)


@dataclass
class _Gang:
    key: str
    name: str
    queue: str
    minimum: int
    priority: int
    created: float
    network: Mapping[str, Any]
    running: list[_Pod] = field(default_factory=list)
    waiting: list[_Pod] = field(default_factory=list)

    @property
    def need(self) -> int:
        return max(self.minimum - len(self.running), 0)


@dataclass
class _Entry:
    """A set of equal waiting pods of a gang."""

    gang: _Gang
    pods: list[_Pod]

    @property
    def one(self) -> _Pod:
        return self.pods[0]


def _is_ready(node: Mapping[str, Any]) -> bool:
    """Return whether a node is Ready, because other nodes offer no capacity to any queue."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


class Instance:
    """The parts of a cluster that the model uses."""

    def __init__(self, items: Sequence[Mapping[str, Any]]) -> None:
        by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for item in items:
            by_kind[item["kind"]].append(item)
        self.now = _seconds(by_kind["Snapshot"][0]["takenAt"])
        self.nodes = {n["metadata"]["name"]: n for n in by_kind["Node"]}
        self.offers = {n: _amounts(o["status"]["allocatable"]) for n, o in self.nodes.items()}
        self.queues = {q["metadata"]["name"]: q["spec"] for q in by_kind["Queue"]}
        self.total: Amounts = Counter()
        for name, offer in self.offers.items():
            if _is_ready(self.nodes[name]):
                self.total.update(offer)
        classes = {c["metadata"]["name"]: c["value"] for c in by_kind["PriorityClass"]}
        self.gangs: dict[str, _Gang] = {}
        for made in by_kind["PodGroup"]:
            spec, meta = made["spec"], made["metadata"]
            self.gangs[meta["name"]] = _Gang(
                f"{meta['namespace']}/{meta['name']}",
                meta["name"],
                spec["queue"],
                spec["minMember"],
                classes.get(spec.get("priorityClassName", ""), 0),
                _seconds(meta["creationTimestamp"]),
                spec.get("networkTopology", {}),
            )
        self.foreign: list[_Pod] = []
        for made in by_kind["Pod"]:
            pod = _pod(made)
            if pod.gang in self.gangs:
                gang = self.gangs[pod.gang]
                (gang.running if pod.node else gang.waiting).append(pod)
            elif pod.node:
                self.foreign.append(pod)
        self.victims = [(g, p) for g in self.gangs.values() for p in g.running if not p.is_spared]
        self.members = [p for g in self.gangs.values() for p in (*g.running, *g.waiting)]
        self.entries = [e for g in self.gangs.values() for e in _entries(g)]
        self.domains = _domains(by_kind["HyperNode"])
        self.cards = {n: _cards(o) for n, o in self.nodes.items()}

    # --- queues ----------------------------------------------------------------------------------

    def parent(self, queue: str) -> str:
        parent = self.queues.get(queue, {}).get("parent", "")
        return "" if parent == "root" else parent

    def line(self, queue: str) -> list[str]:
        """Return the queue and its ancestors, nearest first."""
        found = []
        while queue:
            found.append(queue)
            queue = self.parent(queue)
        return found

    def below(self, queue: str) -> list[str]:
        """Return the queue and its descendants."""
        return [q for q in self.queues if queue in self.line(q)]

    def apart(self, queue: str, other: str) -> list[str]:
        return [q for q in self.line(queue) if q not in self.line(other)]

    def field(self, queue: str, name: str) -> Amounts:
        given = self.queues[queue].get(name) or {}
        return _amounts(given.get("resource") if name == "guarantee" else given)

    def held(self, queue: str) -> Amounts:
        """Return the requests of the queue's running pods, without child queues."""
        pods = [p for g in self.gangs.values() if g.queue == queue for p in g.running]
        return _summed(p.request for p in pods)

    def asked(self, queue: str) -> Amounts:
        """Return the requests of the queue's running and waiting pods."""
        gangs = [g for g in self.gangs.values() if g.queue == queue]
        return _summed(p.request for g in gangs for p in (*g.running, *g.waiting))

    def children(self, queue: str) -> list[str]:
        return [q for q in self.queues if self.parent(q) == queue]


def _pod(made: Mapping[str, Any]) -> _Pod:
    meta, spec = made["metadata"], made["spec"]
    request: Amounts = Counter()
    for container in spec["containers"]:
        request.update(_amounts(container.get("resources", {}).get("requests")))
    request["pods"] = 1
    notes = meta.get("annotations", {})
    return _Pod(
        f"{meta['namespace']}/{meta['name']}",
        notes.get("scheduling.k8s.io/group-name", ""),
        dict(request),
        spec.get("nodeName", ""),
        spec,
        meta.get("labels", {}),
        notes.get("volcano.sh/preemptable") == "false",
    )


def _entries(gang: _Gang) -> list[_Entry]:
    alike: dict[str, list[_Pod]] = defaultdict(list)
    for pod in gang.waiting:
        alike[pod.kind].append(pod)
    return [_Entry(gang, pods) for pods in alike.values()]


def _domains(made: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, set[str]]]:
    """Return the tier and the nodes by HyperNode."""
    by_name = {m["metadata"]["name"]: m["spec"] for m in made}

    def nodes(name: str) -> set[str]:
        members = by_name[name].get("members", ())
        names = [(m["type"], m["selector"]["exactMatch"]["name"]) for m in members]
        return {x for kind, n in names for x in ({n} if kind == "Node" else nodes(n))}

    return {name: (spec["tier"], nodes(name)) for name, spec in by_name.items()}


def _cards(node: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the number of sharers and the memory of each sharable GPU of a node."""
    register = node["metadata"].get("annotations", {}).get("volcano.sh/node-vgpu-register", "")
    parts = [c.split(",") for c in register.split(":") if c]
    return [(int(p[1]), int(p[2])) for p in parts]


def _summed(parts: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


# --- shares --------------------------------------------------------------------------------------


def _proportion_shares(inst: Instance) -> dict[str, dict[str, float]]:
    """Return the share of each queue by weight, level by level of the tree (proportion.md)."""
    found: dict[str, dict[str, float]] = {}

    def total_of(queue: str, what: str) -> Amounts:
        parts = inst.below(queue)
        if what == "asked":
            return _summed(inst.asked(q) for q in parts)
        own = inst.field(queue, "guarantee")
        under = _summed(total_of(q, what) for q in inst.children(queue))
        return {r: max(own.get(r, 0), under.get(r, 0)) for r in own.keys() | under.keys()}

    def pour(parent: str, total: Mapping[str, float]) -> None:
        names = [q for q in inst.children(parent) if any(total_of(q, "asked").values())]
        asked = {q: total_of(q, "asked") for q in names}
        floor = {q: total_of(q, "guarantee") for q in inst.children(parent)}
        share = {q: dict.fromkeys(total, 0.0) for q in names}
        most = {q: _most(inst, q, parent, total, floor) for q in names}
        rest = dict(total)
        unmet = list(names)
        for _ in range(200):
            if not unmet or not any(a > 1e-9 for a in rest.values()):
                break
            weights = sum(int(inst.queues[q].get("weight", 1)) for q in unmet)
            gained: dict[str, float] = dict.fromkeys(total, 0.0)
            keep, changed = [], False
            for q in unmet:
                part = int(inst.queues[q].get("weight", 1)) / weights
                new = {
                    r: max(
                        min(
                            share[q][r] + max(rest[r], 0) * part,
                            most[q][r],
                            asked[q].get(r, 0),
                        ),
                        floor[q].get(r, 0),
                    )
                    for r in total
                }
                moved = any(abs(new[r] - share[q][r]) > 1e-9 for r in total)
                for r in total:
                    gained[r] += new[r] - share[q][r]
                share[q] = new
                changed |= moved
                if moved and any(asked[q].get(r, 0) > new[r] + 1e-9 for r in total):
                    keep.append(q)
            for r in total:
                rest[r] -= gained[r]
            unmet = keep
            if not changed:
                break
        for q in names:
            found[q] = share[q]
            pour(q, share[q])

    pour("", {r: float(a) for r, a in inst.total.items()})
    return found


def _most(
    inst: Instance,
    queue: str,
    parent: str,
    total: Mapping[str, float],
    floor: Mapping[str, Amounts],
) -> dict[str, float]:
    ceiling = inst.field(queue, "capability")
    others = [f for q, f in floor.items() if q != queue] if not parent else []
    return {
        r: min(
            float(ceiling.get(r, 2**62)),
            max(a - sum(f.get(r, 0) for f in others), 0.0),
        )
        for r, a in total.items()
    }


def _capacity_parts(inst: Instance) -> dict[str, dict[str, float]]:
    """Return the share of each queue by `deserved` (capacity.md)."""
    found = {}
    for q in inst.queues:
        deserved, most, least = (inst.field(q, n) for n in ("deserved", "capability", "guarantee"))
        found[q] = {
            r: float(max(min(deserved.get(r, 0), most.get(r, 2**62)), least.get(r, 0)))
            for r in deserved.keys() | least.keys()
        }
    return found


# --- the model -----------------------------------------------------------------------------------


class Joint:
    """The joint problem of one session, with fewer constraints if `relaxed`.

    The relaxed problem has only gangs and the capacity of nodes, and every evictable pod may be
    evicted without cost. No plan of any policy starts more gangs than the relaxed problem.
    """

    def __init__(
        self,
        inst: Instance,
        policy: Mapping[str, Any],
        *,
        evict: bool,
        relaxed: bool = False,
    ) -> None:
        self.inst = inst
        rules = {r["name"]: r for tier in policy["tiers"] for r in tier["rules"]}
        self.rules, self.policy = rules, policy
        self.sharing = next((n for n in ("capacity", "proportion") if n in rules), "")
        actions = policy["actions"]
        self.preempts = evict and "preempt" in actions and "priority" in rules
        self.reclaims = evict and "reclaim" in actions and bool(self.sharing)
        self.due = (
            _capacity_parts(inst)
            if self.sharing == "capacity"
            else _proportion_shares(inst)
            if self.sharing
            else {}
        )
        self.model = cp_model.CpModel()
        self.u: dict[tuple[int, str], cp_model.IntVar] = {}
        self.y: dict[str, cp_model.IntVar] = {}
        self.e: dict[tuple[str, str], tuple[cp_model.IntVar, str]] = {}
        self.gone: dict[str, Any] = {}
        self.whole: dict[str, cp_model.IntVar] = {}
        self.resources = sorted({r for e in inst.entries for r in e.one.request} - set(_CARDS))
        if not any(inst.cards.values()):
            self.resources = sorted({r for e in inst.entries for r in e.one.request})
        if relaxed:
            self._relax()
            self._rooms()
            return
        self._variables()
        self._gangs()
        self._rooms()
        self._relations()
        self._network()
        self._shared_cards()
        self._fifo()
        if self.sharing:
            self._queue_rows()
        self._entitlements()
        self._uses()

    # --- helpers ---------------------------------------------------------------------------------

    def placed(self, number: int) -> Any:
        return sum(self.u[number, n] for n in self.inst.nodes)

    def gained(self, queues: Iterable[str], resource: str) -> Any:
        wanted = set(queues)
        return sum(
            e.one.request.get(resource, 0) * self.placed(i)
            for i, e in enumerate(self.inst.entries)
            if e.gang.queue in wanted and e.one.request.get(resource, 0)
        )

    def lost(self, queues: Iterable[str], resource: str) -> Any:
        wanted = set(queues)
        return sum(
            p.request.get(resource, 0) * self.gone[p.key]
            for g, p in self.inst.victims
            if g.queue in wanted and p.request.get(resource, 0)
        )

    def held(self, queues: Iterable[str], resource: str) -> int:
        return sum(self.inst.held(q).get(resource, 0) for q in queues)

    def _is_open(self, pod: _Pod, node: str) -> bool:
        given = self.inst.nodes[node]
        if "predicates" not in self.rules:
            return True
        labels = given["metadata"]["labels"]
        if any(labels.get(k) != v for k, v in pod.spec.get("nodeSelector", {}).items()):
            return False
        tolerated = {t.get("key") for t in pod.spec.get("tolerations", ())}
        taints = given.get("spec", {}).get("taints", ())
        return all(t["key"] in tolerated for t in taints)

    # --- variables and constraints ---------------------------------------------------------------

    def _variables(self) -> None:
        inst, model = self.inst, self.model
        for i, entry in enumerate(inst.entries):
            for n in inst.nodes:
                most = len(entry.pods) if self._is_open(entry.one, n) else 0
                self.u[i, n] = model.new_int_var(0, most, f"u{i}-{n}")
        for g in inst.gangs.values():
            if g.waiting:
                self.y[g.name] = model.new_bool_var(f"y-{g.name}")
        for victim, pod in inst.victims:
            ways = []
            for g in inst.gangs.values():
                action = self._action(victim, g)
                if not g.waiting or not action:
                    continue
                one = model.new_bool_var(f"e-{pod.key}-{g.name}")
                model.add(one <= self.y[g.name])
                self.e[pod.key, g.name] = one, action
                ways.append(one)
            model.add(sum(ways) <= 1)
            self.gone[pod.key] = sum(ways) if ways else 0

    def _relax(self) -> None:
        inst, model = self.inst, self.model
        for i, entry in enumerate(inst.entries):
            for n in inst.nodes:
                most = len(entry.pods) if self._is_open(entry.one, n) else 0
                self.u[i, n] = model.new_int_var(0, most, "")
        for _, pod in inst.victims:
            self.gone[pod.key] = model.new_bool_var("")
        for g in inst.gangs.values():
            mine = [i for i, e in enumerate(inst.entries) if e.gang is g]
            if mine:
                self.y[g.name] = model.new_bool_var("")
                coming = sum(self.placed(i) for i in mine)
                model.add(coming >= max(g.need, 1) * self.y[g.name])

    def most_started(self, seconds: float = 0.5) -> int:
        """Return an upper bound on the total value of started gangs."""
        total = sum(weight * self.y[name] for name, weight in self.worth().items())
        if isinstance(total, int):
            return total
        self.model.maximize(total)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = seconds
        # The presolve of OR-Tools 9.15 is unsound without this limit (google/or-tools issue 5293).
        solver.parameters.presolve_inclusion_work_limit = 0
        solver.solve(self.model)
        return round(solver.best_objective_bound)

    def _action(self, victim: _Gang, preemptor: _Gang) -> str:
        if victim.name == preemptor.name:
            return ""
        if victim.queue == preemptor.queue:
            more = preemptor.priority > victim.priority
            return "preempt" if self.preempts and more else ""
        spec = self.inst.queues[victim.queue]
        return "reclaim" if self.reclaims and spec.get("reclaimable", True) else ""

    def _gangs(self) -> None:
        model = self.model
        for g in self.inst.gangs.values():
            mine = [i for i, e in enumerate(self.inst.entries) if e.gang is g]
            coming = sum(self.placed(i) for i in mine)
            if mine:
                for i in mine:
                    model.add(self.placed(i) <= len(self.inst.entries[i].pods) * self.y[g.name])
                model.add(coming >= max(g.need, 1) * self.y[g.name])
            if not g.running:
                continue
            leaving = sum(self.gone[p.key] for p in g.running if not p.is_spared)
            if isinstance(leaving, int):
                continue
            can_end = not any(p.is_spared for p in g.running)
            whole = self.whole[g.name] = model.new_bool_var(f"w-{g.name}")
            if not can_end:
                model.add(whole == 0)
            surplus = max(len(g.running) - g.minimum, 0)
            model.add(leaving <= surplus + (len(g.running) - surplus) * whole)
            model.add(leaving >= len(g.running) * whole)
            if mine:  # a gang that loses tasks gets none in one session
                for pod in g.running:
                    if not pod.is_spared:
                        model.add(self.gone[pod.key] + self.y[g.name] <= 1)

    def _rooms(self) -> None:
        inst = self.inst
        for n in inst.nodes:
            residents = [p for g in inst.gangs.values() for p in g.running if p.node == n]
            residents += [p for p in inst.foreign if p.node == n]
            for r in self.resources:
                coming = sum(
                    e.one.request.get(r, 0) * self.u[i, n]
                    for i, e in enumerate(inst.entries)
                    if e.one.request.get(r, 0)
                )
                held = sum(p.request.get(r, 0) for p in residents)
                back = sum(
                    p.request.get(r, 0) * self.gone.get(p.key, 0)
                    for p in residents
                    if p.request.get(r, 0)
                )
                if not isinstance(coming, int):
                    self.model.add(coming <= max(inst.offers[n].get(r, 0) - held, 0) + back)

    def _relations(self) -> None:
        if "predicates" not in self.rules:
            return
        inst, model = self.inst, self.model
        keys = {k for _, p in self._everybody() for k, _ in p.apart}
        for key in keys:
            values = {n: o["metadata"]["labels"].get(key) for n, o in inst.nodes.items()}
            for value in sorted({v for v in values.values() if v is not None}):
                self._apart(key, [n for n, v in values.items() if v == value])
        ports = {p for e in inst.entries for p in e.one.ports}
        for port, n in product(sorted(ports), inst.nodes):
            there = [p for _, p in self._residents() if p.node == n and port in p.ports]
            coming = [self.u[i, n] for i, e in enumerate(inst.entries) if port in e.one.ports]
            stay = sum(1 - self.gone.get(p.key, 0) for p in there)
            if there:
                for each in coming:
                    is_here = model.new_bool_var("")
                    model.add(each <= is_here)
                    model.add(stay <= len(there) * (1 - is_here))
            model.add(sum(coming) <= 1)

    def _everybody(self) -> list[tuple[_Gang | None, _Pod]]:
        return [*self._residents(), *((e.gang, e.one) for e in self.inst.entries)]

    def _residents(self) -> list[tuple[_Gang | None, _Pod]]:
        running = [(g, p) for g in self.inst.gangs.values() for p in g.running]
        return [*running, *((None, p) for p in self.inst.foreign)]

    def _apart(self, key: str, nodes: Sequence[str]) -> None:
        """Add the anti-affinity constraints within one domain."""
        inst, model = self.inst, self.model
        here: dict[int, cp_model.IntVar] = {}
        count = {i: sum(self.u[i, n] for n in nodes) for i in range(len(inst.entries))}
        for i, entry in enumerate(inst.entries):
            here[i] = model.new_bool_var("")
            model.add(count[i] <= len(entry.pods) * here[i])
        residents = [p for _, p in self._residents() if p.node in nodes]
        for i, entry in enumerate(inst.entries):
            mine = entry.one
            for k, app in mine.apart:
                if k != key:
                    continue
                if mine.labels.get("app") == app:
                    model.add(count[i] <= 1)
                for j, other in enumerate(inst.entries):
                    if j != i and other.one.labels.get("app") == app:
                        model.add(here[i] + here[j] <= 1)
                for p in residents:
                    if p.labels.get("app") == app:
                        model.add(here[i] + 1 - self.gone.get(p.key, 0) <= 1)
            for p in residents:
                if (key, mine.labels.get("app")) in p.apart:
                    model.add(here[i] + 1 - self.gone.get(p.key, 0) <= 1)

    def _network(self) -> None:
        if "network-topology-aware" not in self.rules:
            return
        for g in self.inst.gangs.values():
            highest = g.network.get("highestTierAllowed")
            if g.network.get("mode") != "hard" or highest is None or not g.waiting:
                continue
            if highest > max((t for t, _ in self.inst.domains.values()), default=0):
                continue
            allowed = [nodes for tier, nodes in self.inst.domains.values() if tier <= highest]
            chosen = [self.model.new_bool_var("") for _ in allowed]
            self.model.add(sum(chosen) <= 1)
            for i, entry in enumerate(self.inst.entries):
                if entry.gang is not g:
                    continue
                for n in self.inst.nodes:
                    inside = sum(c for c, nodes in zip(chosen, allowed, strict=True) if n in nodes)
                    self.model.add(self.u[i, n] <= len(entry.pods) * inside)

    def _shared_cards(self) -> None:
        inst, model = self.inst, self.model
        if not any(inst.cards.values()):
            return
        for n, cards in inst.cards.items():
            use: dict[int, list[Any]] = {c: [] for c in range(len(cards))}
            alone: dict[int, list[Any]] = {c: [] for c in range(len(cards))}
            for i, entry in enumerate(inst.entries):
                number = entry.one.request.get(_VGPU, 0)
                if not number:
                    continue
                per = []
                for c, (_, memory) in enumerate(cards):
                    v = model.new_int_var(0, len(entry.pods), "")
                    model.add(v <= self.u[i, n])
                    need = entry.one.request.get(_VMEM, memory)
                    cores = entry.one.request.get(_VCORES, 0)
                    use[c].append((v, need, cores))
                    if cores == 100:
                        alone[c].append(v)
                    per.append(v)
                model.add(sum(per) == number * self.u[i, n])
            for c, (sharers, memory) in enumerate(cards):
                model.add(sum(v for v, _, _ in use[c]) <= sharers)
                model.add(sum(need * v for v, need, _ in use[c]) <= memory)
                model.add(sum(cores * v for v, _, cores in use[c]) <= 100)

    def _fifo(self) -> None:
        for q, spec in self.inst.queues.items():
            if spec.get("dequeueStrategy") != "fifo":
                continue
            line = sorted(
                (g for g in self.inst.gangs.values() if g.queue == q and g.waiting),
                key=lambda g: (-g.priority, g.created, g.key),
            )
            line = [g for g in line if not (g.running and g.need)]
            for k, g in enumerate(line):
                for before in line[:k]:
                    if not before.running:
                        self.model.add(self.y[g.name] <= self.y[before.name])

    def _queue_rows(self) -> None:
        inst, model = self.inst, self.model
        for q in inst.queues:
            under = inst.below(q)
            for r, most in inst.field(q, "capability").items():
                gained = self.gained(under, r)
                if isinstance(gained, int):
                    continue
                gains = model.new_bool_var("")
                model.add(gained == 0).only_enforce_if(~gains)
                after = self.held(under, r) + gained - self.lost(under, r)
                model.add(after <= most).only_enforce_if(gains)
        if self.sharing == "capacity" and self.rules["capacity"].get("enableHierarchy"):
            for g in inst.gangs.values():
                if g.waiting and inst.children(g.queue):
                    model.add(self.y[g.name] == 0)
        self._quotas()
        self._guarantees()

    def _quotas(self) -> None:
        """Add the constraints that limit each queue to its share by weight."""
        if self.sharing != "proportion":
            return
        for (q, share), r in product(self.due.items(), self.resources):
            gained = self.gained([q], r)
            if isinstance(gained, int):
                continue
            gains = self.model.new_bool_var("")
            self.model.add(gained == 0).only_enforce_if(~gains)
            after = self.held([q], r) + gained - self.lost([q], r)
            most = ceil(share.get(r, 0) - 1e-6)
            self.model.add(after <= most).only_enforce_if(gains)

    def _guarantees(self) -> None:
        inst, model = self.inst, self.model
        named = {r for q in inst.queues for r in inst.field(q, "guarantee")}
        for r in named:
            outside = sum(p.request.get(r, 0) for p in inst.foreign)
            claim: dict[str, Any] = {}

            def claimed(q: str, r: str = r, claim: dict[str, Any] = claim) -> Any:
                floor = inst.field(q, "guarantee").get(r, 0)
                most = 4 * inst.total.get(r, 0) + 4 * floor
                b = model.new_int_var(floor, max(most, floor), "")
                below = sum(claimed(c) for c in inst.children(q))
                model.add(b >= self.held([q], r) + self.gained([q], r) - self.lost([q], r) + below)
                claim[q] = b
                return b

            tops = [q for q in inst.queues if not inst.parent(q)]
            total = sum(claimed(q) for q in tops)
            pool = max(inst.total.get(r, 0) - outside, 0)
            gained = self.gained(inst.queues, r)
            if isinstance(gained, int):
                continue
            gains = model.new_bool_var("")
            model.add(gained == 0).only_enforce_if(~gains)
            model.add(total <= pool).only_enforce_if(gains)

    def _entitlements(self) -> None:
        """Add the reclaim constraints.

        The claiming queue ends within its share, and the lending queue was above its share.
        """
        inst, model = self.inst, self.model
        pairs: dict[tuple[str, str], list[tuple[_Pod, cp_model.IntVar]]] = defaultdict(list)
        for victim, pod in inst.victims:
            for g in inst.gangs.values():
                found = self.e.get((pod.key, g.name))
                if found is not None and found[1] == "reclaim":
                    pairs[g.name, victim.queue].append((pod, found[0]))
        for (name, lender), ways in pairs.items():
            gang = inst.gangs[name]
            on = model.new_bool_var("")
            for _, one in ways:
                model.add(one <= on)
            asked = sorted({r for p in gang.waiting for r in p.request} - {"pods"})
            self._claim(gang.queue, lender, asked, on)
            kept = [(p, one) for p, one in ways if not self._is_guaranteed(gang, lender, p)]
            self._lend(lender, gang.queue, asked, on, (ways, kept))

    def _is_guaranteed(self, gang: _Gang, lender: str, pod: _Pod) -> bool:
        """Return whether a gang may evict a pod from a lender below its share (victims.md)."""
        inst = self.inst
        common = set.intersection(*(set(p.request) for p in gang.waiting))
        number = max(gang.need, 1)
        least = {r: number * min(p.request[r] for p in gang.waiting) for r in common}
        for a in inst.apart(gang.queue, lender):
            floor = {r: n for r, n in inst.field(a, "guarantee").items() if n and least.get(r)}
            held = _summed(inst.held(q) for q in inst.below(a))
            fits = all(held.get(r, 0) + least[r] <= n for r, n in floor.items())
            if fits and any(pod.request.get(r) for r in floor):
                return True
        return False

    def _due_of(self, queue: str, asked: Sequence[str]) -> dict[str, int]:
        due = self.due.get(queue, {})
        return {r: ceil(due[r] - 1e-6) for r in asked if due.get(r, 0) > 0}

    def _claim(self, queue: str, lender: str, asked: Sequence[str], on: cp_model.IntVar) -> None:
        chain = self.inst.apart(queue, lender)
        if not any(self._due_of(a, asked) for a in chain):
            self.model.add(on == 0)
            return
        for a in chain:
            under = self.inst.below(a)
            for r, due in self._due_of(a, asked).items():
                after = self.held(under, r) + self.gained(under, r) - self.lost(under, r)
                self.model.add(after <= due).only_enforce_if(on)

    def _lend(
        self,
        lender: str,
        queue: str,
        asked: Sequence[str],
        on: cp_model.IntVar,
        leaving: tuple[Sequence[tuple[_Pod, cp_model.IntVar]], ...],
    ) -> None:
        inst, model = self.inst, self.model
        ways, kept = leaving
        for a in inst.apart(lender, queue):
            under = inst.below(a)
            for r, floor in inst.field(a, "guarantee").items():
                left = self.held(under, r) - self.lost(under, r)
                if self.held(under, r) >= floor and not isinstance(left, int):
                    model.add(left >= floor).only_enforce_if(on)
            for resources, own, bound in self._judged_together(a, asked, kept):
                any_bound = model.new_bool_var("")
                for one in bound:
                    model.add(one <= any_bound)
                model.add(any_bound <= sum(bound))
                choices = []
                for r, due in self._due_of(a, sorted({*resources, *own})).items():
                    lost, excess = self.lost(under, r), self.held(under, r) - due
                    sizes = [
                        (self._size(victim, r), self.whole[victim.name])
                        for victim in inst.gangs.values()
                        if victim.queue == lender
                        and victim.name in self.whole
                        and (r in resources or victim.name in own.get(r, ()))
                    ]
                    if r in resources:
                        sizes.append((max(p.request.get(r, 0) for p, _ in ways), True))
                    for size, leaves in sizes:
                        chosen = model.new_bool_var("")
                        choices.append(chosen)
                        model.add(chosen <= leaves)
                        model.add(lost <= excess - 1 + size).only_enforce_if(chosen)
                model.add_bool_or([*choices, ~any_bound])
        if self.sharing == "capacity":
            self._relate(asked, ways)

    def _judged_together(
        self, queue: str, asked: Sequence[str], kept: Sequence[tuple[_Pod, cp_model.IntVar]]
    ) -> Iterator[tuple[set[str], dict[str, set[str]], list[cp_model.IntVar]]]:
        """Yield victims, the resources that count for each, and those that count for its gang.

        With `capacity`, the resources are those that the victim uses. The minimum of a gang is one
        victim with the resources of all its pods (entitled.md).
        """
        if self.sharing != "capacity":
            named = set(self._due_of(queue, asked))
            bound = [one for p, one in kept if named & p.request.keys()]
            if bound:
                yield named, {}, bound
            return
        listed = set(self._due_of(queue, sorted(self.due.get(queue, {}))))
        found: dict[tuple[frozenset[str], str], list[cp_model.IntVar]] = defaultdict(list)
        owner = {p.key: g for g, p in self.inst.victims}
        for p, one in kept:
            used = frozenset(r for r in listed if p.request.get(r))
            if used:
                found[used, owner[p.key].name].append(one)
        for (used, name), bound in sorted(found.items(), key=lambda e: (sorted(e[0][0]), e[0][1])):
            gang = self.inst.gangs[name]
            more = {r: {name} for r in listed - used if self._size(gang, r)}
            yield set(used), more, bound

    def _size(self, gang: _Gang, resource: str) -> int:
        """Return the amount of a resource that the pods of a gang's minimum hold together.

        Pods without the resource are part of the minimum first.
        """
        amounts = sorted(p.request.get(resource, 0) for p in gang.running)
        core = min(gang.minimum, len(amounts))
        number = core - amounts.count(0)
        return sum(amounts[-number:]) if core > 1 and number > 0 else 0

    def _relate(self, asked: Sequence[str], ways: Sequence[tuple[_Pod, cp_model.IntVar]]) -> None:
        """Add the constraints that a victim, or its whole gang, uses a requested resource."""
        owner = {p.key: g for g, p in self.inst.victims}
        for p, one in ways:
            if any(p.request.get(r) for r in asked):
                continue
            gang = owner[p.key]
            helps = any(self._size(gang, r) for r in asked)
            self.model.add(one <= (self.whole[gang.name] if helps else 0))

    def _uses(self) -> None:
        """Add the constraints that a gang evicts pods only for its tasks on the victims' node.

        A gang evicts no more pods than these tasks need.
        """
        inst, model = self.inst, self.model
        by_place: dict[tuple[str, str], list[tuple[_Gang, _Pod, cp_model.IntVar]]]
        by_place = defaultdict(list)
        for victim, pod in inst.victims:
            for name in inst.gangs:
                found = self.e.get((pod.key, name))
                if found is not None:
                    by_place[name, pod.node].append((victim, pod, found[0]))
        for (name, n), ways in by_place.items():
            mine = [(i, e) for i, e in enumerate(inst.entries) if e.gang.name == name]
            coming = sum(self.u[i, n] for i, _ in mine)
            for victim, _, one in ways:
                there = {p.node for p in victim.running}
                near = sum(self.u[i, m] for i, _ in mine for m in there)
                model.add(one <= coming + self.whole[victim.name])
                model.add(one <= near)
            lean = []
            for r in {r for _, p, _ in ways for r in p.request}:
                largest = max(p.request.get(r, 0) for _, p, _ in ways)
                asked = sum(e.one.request.get(r, 0) * self.u[i, n] for i, e in mine)
                back = sum(p.request.get(r, 0) * one for _, p, one in ways)
                is_lean = model.new_bool_var("")
                lean.append(is_lean)
                model.add(back <= asked + largest - 1).only_enforce_if(is_lean)
            model.add_bool_or([*lean, *{self.whole[v.name] for v, _, _ in ways}])

    # --- levels ----------------------------------------------------------------------------------

    def levels(self) -> list[tuple[str, bool, Any]]:
        """Return the name, the direction and the expression of each level, in the order of the
        policy.

        The direction is whether a larger value is better.
        """
        found: list[tuple[str, bool, Any]] = []
        for name in self.policy["levels"]:
            if name == "guarantee" and self.sharing:
                found.append(("guarantee", False, self._missing("guarantee", 10**6)))
            elif name == "admission":
                found += [(f"admission {t}", True, e) for t, e in self._admission()]
            elif name == "fair-share" and self.sharing:
                found.append(("fair share", False, self._missing("due", 1000)))
            elif name == "tasks":
                found += [(f"tasks {t}", True, e) for t, e in self._tasks()]
        gone = [v for v in self.gone.values() if not isinstance(v, int)]
        if gone:
            found.append(("victims", False, sum(gone)))
        return [level for level in found if not isinstance(level[2], int)]

    def _tier(self, gang: _Gang) -> tuple[int, ...]:
        priority = gang.priority if "priority" in self.rules else 0
        if self.policy.get("admission", {}).get("by") == "weight":
            return (0,)
        of_queue = int(self.inst.queues[gang.queue].get("priority", 0)) if self.sharing else 0
        limit = float(str(self.policy.get("starvationAfter", "60s")).removesuffix("s"))
        waited = self.inst.now - gang.created > limit and not gang.running
        standing = 0 if gang.running and gang.need else 3 if waited else 4
        return -of_queue, -priority, standing

    def _weights(self) -> list[int]:
        """Return the weight of one task of each entry (admission.md)."""
        total = self.inst.total
        shares = [
            # A request that no node offers counts as more than the whole capacity.
            {r: Fraction(a, total[r]) if total.get(r) else Fraction(2) for r, a in asked if a}
            for asked in (
                [(r, a) for r, a in e.one.request.items() if r != "pods"] for e in self.inst.entries
            )
        ]
        named = {r for e in self.inst.entries for r in e.one.request} - {"pods"}
        devices_first = sorted(named, key=lambda r: (r not in ("cpu", "memory"), r), reverse=True)
        for r in devices_first:
            if all(s and s.get(r, 0) == max(s.values()) for s in shares):
                return [e.one.request[r] for e in self.inst.entries]
        largest = [min(max(s.values(), default=Fraction(0)), Fraction(1)) for s in shares]
        return [max(round(share * BILLION), 1) for share in largest]

    def worth(self) -> dict[str, int]:
        """Return the value of starting each gang that does not run yet (admission.md)."""
        weights = self._weights()
        by_weight = self.policy.get("admission", {}).get("by") == "weight"
        found = {}
        for g in self.inst.gangs.values():
            mine = [(i, e) for i, e in enumerate(self.inst.entries) if e.gang is g]
            need = max(g.minimum - len(g.running), 0)
            if not mine or not need:
                continue
            number = sum(len(e.pods) for _, e in mine)
            mass = sum(len(e.pods) * weights[i] for i, e in mine) * need
            found[g.name] = max(mass // number, 1) * (max(g.priority, 1) if by_weight else 1)
        return found

    def _admission(self) -> list[tuple[tuple[int, ...], Any]]:
        tiers: dict[tuple[int, ...], Any] = defaultdict(int)
        for name, weight in self.worth().items():
            tiers[self._tier(self.inst.gangs[name])] += weight * self.y[name]
        return sorted(tiers.items())

    def _tasks(self) -> list[tuple[tuple[int, ...], Any]]:
        weights = self._weights()
        tiers: dict[tuple[int, ...], Any] = defaultdict(int)
        for i, e in enumerate(self.inst.entries):
            if e.gang.need < len(e.gang.waiting):
                tiers[self._tier(e.gang)] += weights[i] * self.placed(i)
        return sorted(tiers.items())

    def _missing(self, what: str, grid: int) -> Any:
        """Return the number of steps by which queues miss their guarantee or
        share (shortfall.md).
        """
        inst, model = self.inst, self.model
        total: Any = 0
        for q in inst.queues:
            own = what == "due" and self.sharing == "proportion"
            under = [q] if own else inst.below(q)
            due = (
                {r: ceil(a - 1e-6) for r, a in self.due.get(q, {}).items()}
                if what == "due"
                else inst.field(q, "guarantee")
            )
            for r, amount in due.items():
                unit = gcd(*(p.request.get(r, 0) for p in inst.members), 0) or 1
                step = max(-(-inst.total.get(r, 0) // (grid * unit)), 1) * unit
                asked = sum(inst.asked(p).get(r, 0) for p in under)
                target = min(amount, asked)
                held = self.held(under, r)
                if target <= held and not self.gone:
                    continue
                d = model.new_int_var(0, max(-(-target // step), 0), "")
                use = held + self.gained(under, r) - self.lost(under, r)
                model.add(step * d + use >= target)
                total += d
        return total

    # --- solving ---------------------------------------------------------------------------------

    def bar(self, tasks: Sequence[str]) -> None:
        """Forbid the combination of victims and started gangs of a rejected plan."""
        chosen = set(tasks)
        kept = [v for k, v in self.gone.items() if k in chosen and not isinstance(v, int)]
        starts = [self.y[k] for k in chosen if k in self.y]
        if kept or starts:
            self.model.add(sum([*kept, *starts]) <= len(kept) + len(starts) - 1)

    def solve(self, seconds: float = 1.0) -> dict[str, Any] | None:
        """Return the best plan level by level, or None without a solution within the limit."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = seconds
        # The presolve of OR-Tools 9.15 is unsound without this limit (google/or-tools issue 5293).
        solver.parameters.presolve_inclusion_work_limit = 0
        values: list[tuple[str, int, int]] = []
        levels = self.levels()
        for name, is_max, expression in levels:
            (self.model.maximize if is_max else self.model.minimize)(expression)
            status = solver.solve(self.model)
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return None
            value = round(solver.objective_value)
            values.append((name, value, round(solver.best_objective_bound)))
            if is_max:
                self.model.add(expression >= value)
            else:
                self.model.add(expression <= value)
            self._hint(solver)
        if not levels:
            solver.solve(self.model)
        return {"levels": values, **self._plan(solver)}

    def _hint(self, solver: cp_model.CpSolver) -> None:
        self.model.clear_hints()
        for variable in (*self.u.values(), *self.y.values(), *(v for v, _ in self.e.values())):
            self.model.add_hint(variable, solver.value(variable))

    def _plan(self, solver: cp_model.CpSolver) -> dict[str, Any]:
        evicted = [
            (task, self.inst.gangs[g].key, action)
            for (task, g), (one, action) in self.e.items()
            if solver.value(one)
        ]
        idle = {}
        for n, offer in self.inst.offers.items():
            there = _summed(p.request for _, p in self._residents() if p.node == n)
            idle[n] = {r: a - there.get(r, 0) for r, a in offer.items()}
        gone = {task for task, _, _ in evicted}
        named = {gang for _, gang, _ in evicted}
        left = {p.node for _, p in self._residents() if p.key in gone}
        come: dict[str, list[tuple[_Pod, str]]] = defaultdict(list)
        for i, entry in enumerate(self.inst.entries):
            nodes = [n for n in self.inst.nodes for _ in range(solver.value(self.u[i, n]))]
            come[entry.gang.name] += list(zip(entry.pods, nodes, strict=False))
        ordered = sorted(come, key=lambda g: (-self.inst.gangs[g].priority, g))
        bind, nominate = [], []
        for gang in ordered:
            trial = {n: dict(a) for n, a in idle.items()}
            fits = True
            for pod, n in come[gang]:
                for r, a in pod.request.items():
                    trial[n][r] = trial[n].get(r, 0) - a
                    fits &= trial[n][r] >= 0
            waits = (
                not fits
                or self.inst.gangs[gang].key in named
                or ("predicates" in self.rules and self._is_tied(come[gang], left))
            )
            if not waits:
                idle = trial
            (nominate if waits else bind).extend(
                (pod.key, n, self.inst.gangs[gang].key) for pod, n in come[gang]
            )
        return {"bind": bind, "nominate": nominate, "evict": evicted}

    def _is_tied(self, coming: Sequence[tuple[_Pod, str]], left: set[str]) -> bool:
        """Return whether terminating pods may block a pod by constraints other than resources."""
        related = any(p.apart or p.ports or p.labels for p, _ in coming)
        return related and bool(left)


def answer(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the plan for one request."""
    joint = Joint(
        Instance(request["document"]["items"]),
        request["policy"],
        evict=request.get("evict", True),
    )
    for barred in request.get("barred", ()):
        joint.bar(barred)
    return joint.solve()


def appraise(request: Mapping[str, Any]) -> dict[str, int]:
    """Return the total value of the started gangs, and an upper bound for every plan."""
    inst = Instance(request["document"]["items"])
    joint = Joint(inst, request["policy"], evict=True, relaxed=True)
    started = set(request["started"])
    worth = joint.worth()
    value = sum(w for name, w in worth.items() if inst.gangs[name].key in started)
    return {"value": value, "most": joint.most_started()}


def main() -> None:
    """Answer requests line by line."""
    for line in sys.stdin:
        try:
            request = json.loads(line)
            reply: Any = {"plan": (appraise if "started" in request else answer)(request)}
        except Exception as e:
            reply = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps({**reply, "cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
