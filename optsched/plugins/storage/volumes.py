"""Volumes: a task runs only where the task's claims are or can be bound to reachable volumes.

Mathematics: models/formulation/volumes.md, models/formulation/volume_zone.md and
models/formulation/volume_fill.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.volumes import VolumeAssignment, VolumeRequest, assign_volumes
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.switches import Switch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Claim, Snapshot, Volume
    from optsched.cluster.task import TaskShape
    from optsched.cluster.volumes import Selects
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.outcome import Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class Volumes(Rule):
    """Every claim of a task exists, can be used, and is reachable from the node of the task.

    Attributes
    ----------
    patience_s
        Longest time that a pod with an assigned node may wait for its volumes, in seconds.

    """

    name = "volumes"
    hard_switch = Switch.PREDICATE

    patience_s: int = 600

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for key in task.shape.claims:
                claim = world.snapshot.claims.get(key)
                if claim is None or claim.problem:
                    problem = f": {claim.problem}" if claim else " does not exist"
                    detail = f"claim {key}{problem}"
                    yield Violation(self.name, f"task {task.key}", detail)
                elif not claim.is_reachable(node.name, node.labels):
                    detail = f"claim {key} cannot be reached from node {node.name}"
                    yield Violation(self.name, f"task {task.key}", detail)
        yield from self._verify_supply(world)

    def _verify_supply(self, world: World) -> Iterator[Violation]:
        """Yield violations by placed tasks with a claim for which no volume remains."""
        scarce = _scarce(world.snapshot)
        placed = [(t, node.name) for t, _, node in world.placements if scarce & {*t.shape.claims}]
        if not placed:
            return
        claims = world.snapshot.claims
        used_on = _standing(world.snapshot, scarce)
        for task, name in placed:
            for key in scarce.intersection(task.shape.claims):
                used_on.setdefault(key, {})[name] = None
        short = assign_volumes(claims, used_on, _selects(world.snapshot)).short
        for task, _ in placed:
            for key in sorted(short.intersection(task.shape.claims)):
                detail = f"no volume is left for claim {key}"
                yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        if not shape.claims:
            return None
        if unusable(problem.snapshot, shape):
            return np.zeros(problem.num_nodes, np.bool_)
        chosen = np.ones(problem.num_nodes, np.bool_)
        for key in shape.claims:
            chosen &= _reachable(problem, problem.snapshot.claims[key])
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The text contains the claims of the class."""
        claims = ", ".join(problem.classes.shapes[task_class].claims)
        return f"cannot reach the volumes of {claims}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`. Returns True if claims of the class compete for volumes."""
        return bool(problem.derived(_supply).of_class[task_class])

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        supply = problem.derived(_supply)
        return _VolumeMatching(supply) if any(supply.of_class) else None

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`. Each claim chooses a volume, and tasks go to nodes that reach the volume.

        No two claims may choose the same volume.
        """
        problem, model, supplied = nodes.gang_alone, nodes.model, nodes.supplied
        supply = problem.derived(_supply)
        of_volume: dict[str, list[int]] = {}
        for key, claim in supply.claims.items():
            choice = _encode_choice(model, claim, of_volume)
            for c in supply.classes_of(key):
                _encode_class(supply, claim, choice, (model, supplied[c]))
            for node in supply.standing.get(key, ()):
                _encode_standing(supply, claim, choice, (model, node))
        for variables in of_volume.values():
            if len(variables) > 1:
                model.add_row(variables, [1] * len(variables), upper=1)

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names a claim that no node can use."""
        problem = outcome.problem
        start, end = problem.task_start[gang], problem.task_start[gang + 1]
        for task in problem.tasks[start:end]:
            why = unusable(problem.snapshot, task.shape)
            if why:
                return Reason(ReasonCode.VOLUME, why)
        return None


def unusable(snapshot: Snapshot, shape: TaskShape) -> str:
    """Return why no node can run tasks with the claims of a task shape; empty if some can."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        if claim is None:
            return f"persistent volume claim {key} does not exist"
        if claim.problem:
            return f"persistent volume claim {key}: {claim.problem}"
    return ""


def _reachable(problem: Problem, claim: Claim) -> Bool:
    """Return the mask (N,) of nodes for which `Claim.is_reachable` is true."""
    everywhere = np.ones(problem.num_nodes, np.bool_)
    selects = problem.columns.selects
    allowed = everywhere if claim.nodes is None else selects(claim.nodes)
    if not claim.waits_for_consumer:
        return allowed
    found = allowed.copy() if claim.provisions else ~everywhere
    for volume in claim.volumes:
        found |= everywhere if volume.nodes is None else selects(volume.nodes)
    if claim.selected_node:
        names = [node.name == claim.selected_node for node in problem.snapshot.nodes]
        found &= np.array(names, np.bool_)
    return found


# --- claims that compete for volumes -------------------------------------------------------------


def _scarce(snapshot: Snapshot) -> set[str]:
    return {key for key, claim in snapshot.claims.items() if claim.is_scarce}


def _selects(snapshot: Snapshot) -> Selects:
    nodes = snapshot.node_by_name
    return lambda selector, name: selector.matches(name, nodes[name].labels)


def _standing(snapshot: Snapshot, scarce: set[str]) -> dict[str, dict[str, None]]:
    """Return the names of nodes on which pods already use scarce claims, by claim.

    A claim for which no volume is left is omitted, because such a claim uses no volume.
    """
    found: dict[str, dict[str, None]] = {}
    for node in snapshot.nodes:
        for task in node.residents:
            for key in scarce.intersection(task.shape.claims):
                found.setdefault(key, {})[node.name] = None
    short = assign_volumes(snapshot.claims, found, _selects(snapshot)).short if found else set()
    return {key: nodes for key, nodes in found.items() if key not in short}


@dataclass(frozen=True, eq=False, slots=True)
class _Supply:
    """Scarce claims, which compete for volumes, of pending and running tasks.

    Attributes
    ----------
    of_class
        (C,) keys of the scarce claims of each task class.
    standing
        Indices of the nodes on which pods already use each claim, by claim key.
    reached
        (N,) True for nodes that reach each volume, by volume name.
    allowed
        (N,) True for nodes on which a volume can be provisioned for each claim, by claim key.

    """

    claims: Mapping[str, Claim]
    of_class: Sequence[tuple[str, ...]]
    standing: Mapping[str, Sequence[int]]
    reached: Mapping[str, Bool]
    allowed: Mapping[str, Bool]

    def classes_of(self, key: str) -> list[int]:
        """Return the indices of the task classes that use a claim."""
        return [c for c, keys in enumerate(self.of_class) if key in keys]

    def fitting_volumes(self, key: str, nodes: Collection[int]) -> VolumeRequest:
        """Return the volumes to which a claim can be bound if pods on `nodes` use the claim."""
        at = list(nodes)
        claim = self.claims[key]
        fitting = tuple(v.name for v in claim.volumes if self.reached[v.name][at].all())
        return VolumeRequest(key, fitting, bool(self.allowed[key][at].all()))


def _supply(problem: Problem) -> _Supply:
    snapshot = problem.snapshot
    scarce = _scarce(snapshot)
    of_class = [tuple(k for k in s.claims if k in scarce) for s in problem.classes.shapes]
    if not any(of_class):
        return _Supply({}, of_class, {}, {}, {})
    number = {node.name: n for n, node in enumerate(snapshot.nodes)}
    used_on = _standing(snapshot, scarce)
    wanted = dict.fromkeys([*(key for keys in of_class for key in keys), *used_on])
    claims = {key: snapshot.claims[key] for key in wanted}
    volumes = {v.name: v.nodes for claim in claims.values() for v in claim.volumes}
    return _Supply(
        claims,
        of_class,
        {key: [number[node] for node in nodes] for key, nodes in used_on.items()},
        {name: _selected(problem, nodes) for name, nodes in volumes.items()},
        {key: _selected(problem, c.nodes) & bool(c.provisions) for key, c in claims.items()},
    )


def _selected(problem: Problem, nodes: NodeSelector | None) -> Bool:
    if nodes is None:
        return np.ones(problem.num_nodes, np.bool_)
    return problem.columns.selects(nodes)


class _VolumeMatching(Greedy):
    """A matching of claims to volumes, which is updated as tasks are placed."""

    def __init__(self, supply: _Supply) -> None:
        self._supply = supply
        self._used: dict[str, dict[int, int]] = {}
        self._holders = VolumeAssignment()
        for key, nodes in supply.standing.items():
            for node in nodes:
                self._add_user(key, node, 1)

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        keys = self._supply.of_class[task_class]
        if not keys:
            return None
        allowed = self._open_nodes(keys[0])
        for key in keys[1:]:
            allowed &= self._open_nodes(key)
        return allowed if len(keys) == 1 else self._together(keys, allowed)

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        for key in self._supply.of_class[task_class]:
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                self._add_user(key, node, count)

    def _add_user(self, key: str, node: int, count: int) -> None:
        """Add users of a claim on a node; a claim without users holds no volume."""
        used = self._used.setdefault(key, {})
        used[node] = used.get(node, 0) + count
        if used[node] <= 0:
            del used[node]
        if used:
            self._holders.assign(self._supply.fitting_volumes(key, used))
        else:
            self._holders.remove(key)

    def _open_nodes(self, key: str) -> Bool:
        """Return the mask (N,) of nodes for one more user of a claim, ignoring other claims."""
        supply, used = self._supply, self._used.get(key, {})
        request = supply.fitting_volumes(key, used)
        found = (
            supply.allowed[key].copy() if request.is_made else np.zeros_like(supply.allowed[key])
        )
        for volume in self._holders.usable_volumes(key, request.volumes):
            found |= supply.reached[volume]
        return found

    def _together(self, keys: Sequence[str], allowed: Bool) -> Bool:
        """Return the `allowed` nodes (N,) with enough volumes for all claims of a task."""
        found = allowed.copy()
        for node in np.flatnonzero(allowed).tolist():
            for key in keys:
                self._add_user(key, node, 1)
            found[node] = self._holders.short.isdisjoint(keys)
            for key in reversed(keys):
                self._add_user(key, node, -1)
        return found


_Choice = tuple[dict[str, int], int]
"""The variables of a claim: one for each volume, and one for provisioning or -1."""


def _encode_choice(model: LinearModel, claim: Claim, of_volume: dict[str, list[int]]) -> _Choice:
    chosen = model.add_variables(np.zeros(len(claim.volumes), np.int64), 1).tolist()
    for volume, variable in zip(claim.volumes, chosen, strict=True):
        of_volume.setdefault(volume.name, []).append(variable)
    made = int(model.add_variables(0, 1)[0]) if claim.provisions else -1
    variables = [*chosen, made] if made >= 0 else chosen
    model.add_row(variables, [1] * len(variables), upper=1)
    return {v.name: x for v, x in zip(claim.volumes, chosen, strict=True)}, made


def _serving(supply: _Supply, claim: Claim, choice: _Choice, node: int) -> list[int]:
    """Return the variables of the volume choices that make a claim usable on a node."""
    chosen, made = choice
    found = [x for name, x in chosen.items() if supply.reached[name][node]]
    return [*found, made] if made >= 0 and supply.allowed[claim.key][node] else found


def _encode_class(
    supply: _Supply, claim: Claim, choice: _Choice, rows: tuple[LinearModel, I64]
) -> None:
    """Add rows that place tasks of a class only on nodes that reach the chosen volume.

    `rows` is a pair: the model, and (N,) the variable of the task class for each node.
    """
    model, supplied = rows
    for node in np.flatnonzero(supplied >= 0).tolist():
        variable = int(supplied[node])
        most = int(model.bounds[1][variable])
        serving = _serving(supply, claim, choice, node)
        if most > 0:
            model.add_row([variable, *serving], [1, *[-most] * len(serving)], upper=0)


def _encode_standing(
    supply: _Supply, claim: Claim, choice: _Choice, where: tuple[LinearModel, int]
) -> None:
    """Add a row that makes the chosen volume reachable from a node on which pods use the claim."""
    model, node = where
    serving = _serving(supply, claim, choice, node)
    if serving:
        model.add_row(serving, [1] * len(serving), lower=1)


_BETA = "failure-domain.beta.kubernetes.io"
_NOW = "topology.kubernetes.io"
_RENAMED = {f"{_BETA}/{part}": f"{_NOW}/{part}" for part in ("region", "zone")}
_LABELS = (*_RENAMED, *_RENAMED.values())


class VolumeZone(Rule):
    """A volume with zone or region labels is reachable only from nodes in the zones or regions."""

    name = "volume-zone"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for key, label, values in _zones(world.snapshot, task.shape):
                if not _reaches(node.labels, label, values):
                    where = f"{label} {' or '.join(values)}"
                    detail = f"the volume of claim {key} is in {where}, node {node.name} is not"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        zones = list(_zones(problem.snapshot, problem.classes.shapes[task_class]))
        if not zones:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for _, label, values in zones:
            chosen &= problem.columns.selects(_selector(label, values))
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The text contains the claims, and the zones of the claims' volumes."""
        zones = _zones(problem.snapshot, problem.classes.shapes[task_class])
        described = (f"claim {key} ({label} {' or '.join(values)})" for key, label, values in zones)
        return f"did not match the zone of the volume of {', '.join(described)}"


def _zones(snapshot: Snapshot, shape: TaskShape) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (claim, label, values) for each zone label of the volumes of a task shape."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        for label, values in claim.zones if claim is not None else ():
            yield key, label, values


def _reaches(labels: Mapping[str, str], label: str, values: tuple[str, ...]) -> bool:
    """Return whether a node with the labels `labels` is in one of the zones `values`.

    A node without zone and region labels reaches all volumes.
    """
    if not any(known in labels for known in _LABELS):
        return True
    own = labels.get(label, labels.get(_RENAMED.get(label, label)))
    return own in values


def _selector(label: str, values: tuple[str, ...]) -> NodeSelector:
    """Return a selector equivalent to `_reaches`, which checks each label value only once."""
    here = Requirement(label, Operator.IN, values)
    terms = [(here,), tuple(Requirement(k, Operator.DOES_NOT_EXIST) for k in _LABELS)]
    if label in _RENAMED:
        by_new_name = Requirement(_RENAMED[label], Operator.IN, values)
        terms.append((Requirement(label, Operator.DOES_NOT_EXIST), by_new_name))
    return NodeSelector(tuple(NodeTerm(term) for term in terms))


FULL = 100
TENTH = 10
"""The factor that turns configured points (0 to 10) into scores (0 to 100)."""


@dataclass(frozen=True)
class VolumeFill(Rule):
    """Score nodes by the utilization of the existing volumes that the task's claims would get.

    Attributes
    ----------
    shape
        Pairs (utilization in percent, points from 0 to 10), sorted by utilization. Between two
        pairs, points are interpolated linearly.

    """

    name = "volume-fill"

    shape: tuple[tuple[int, int], ...]
    weight: int = 1

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`. Scores nodes by the volumes to which claims would be bound (`_choices`)."""
        known = problem.snapshot.claims
        keys = problem.classes.shapes[task_class].claims
        claims = {key: known[key] for key in keys if key in known and known[key].is_scarce}
        if not claims:
            return None
        scores = np.zeros(problem.num_nodes)
        for node, chosen in _choices(problem, claims):
            scores[node] = self.weight * self.points(chosen)
        return scores

    def points(self, chosen: Sequence[tuple[int, Volume]]) -> int:
        """Return a score from 0 to 100 for (requested bytes, volume) pairs.

        The score is the mean over storage classes.
        """
        requested: dict[str, list[int]] = {}
        for size_bytes, volume in chosen:
            total = requested.setdefault(volume.storage_class, [0, 0])
            total[0] += size_bytes
            total[1] += volume.capacity_bytes
        points = sum(self._points_at(_percent(*total)) for total in requested.values())
        return (2 * points + len(requested)) // (2 * len(requested)) if requested else 0

    def _points_at(self, percent: int) -> int:
        """Return the score at a utilization in percent; interpolation rounds towards zero.

        Upstream also rounds interpolated scores towards zero.
        """
        shape = [(at, points * TENTH) for at, points in self.shape]
        if percent <= shape[0][0]:
            return shape[0][1]
        for (left, low), (right, high) in pairwise(shape):
            if percent <= right:
                rise = (high - low) * (percent - left)
                step = abs(rise) // (right - left)
                return low + (step if rise >= 0 else -step)
        return shape[-1][1]


def _percent(requested: int, capacity: int) -> int:
    return FULL if capacity == 0 or requested > capacity else requested * FULL // capacity


def _choices(
    problem: Problem, claims: Mapping[str, Claim]
) -> list[tuple[int, list[tuple[int, Volume]]]]:
    """Return the (requested bytes, volume) pairs that claims would get on each node.

    Nodes that lack a volume for a claim, or on which claims use no existing volume, are omitted.
    """
    selects = _cache_selection(problem)
    volumes = {volume.name: volume for claim in claims.values() for volume in claim.volumes}
    found = []
    for n, node in enumerate(problem.snapshot.nodes):
        holders = assign_volumes(claims, dict.fromkeys(claims, (node.name,)), selects)
        if not holders.short and holders.claim_by_volume:
            chosen = [
                (claims[key].size_bytes, volumes[v]) for v, key in holders.claim_by_volume.items()
            ]
            found.append((n, chosen))
    return found


def _cache_selection(problem: Problem) -> Selects:
    number = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
    known: dict[NodeSelector, Bool] = {}

    def selects(selector: NodeSelector, name: str) -> bool:
        if selector not in known:
            known[selector] = problem.columns.selects(selector)
        return bool(known[selector][number[name]])

    return selects
