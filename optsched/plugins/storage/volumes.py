"""Volumes: a task runs only on nodes that can reach volumes for all its claims.

Mathematics: models/formulation/volumes.md, models/formulation/volume_zone.md and
models/formulation/volume_fill.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.volumes import VolumeAssignment, VolumeRequest, assign_volumes
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Claim, Snapshot, Volume
    from optsched.cluster.task import TaskShape
    from optsched.cluster.volumes import Selects
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem


@dataclass(frozen=True)
class Volumes(Rule):
    """Rule: every claim of a task exists, is usable, and can be reached from the task's node.

    Attributes
    ----------
    patience_s
        Maximum time that a pod with an assigned node may wait for its volumes, in seconds.

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
        scarce = {key for key, claim in world.snapshot.claims.items() if claim.is_scarce}
        placed = [(t, node.name) for t, _, node in world.placements if scarce & {*t.shape.claims}]
        if not placed:
            return
        used_on = _find_nodes_in_use(world.snapshot, scarce)
        for task, name in placed:
            for key in scarce.intersection(task.shape.claims):
                used_on.setdefault(key, {})[name] = None
        short = assign_volumes(world.snapshot.claims, used_on, _match_nodes(world.snapshot)).short
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
        for claim in (problem.snapshot.claims[key] for key in shape.claims):
            # The verifier checks with `Claim.is_reachable` whether a node can use a claim.
            reached = _select_nodes(problem, claim.nodes)
            if claim.waits_for_consumer:
                reached &= claim.provisions
                for volume in claim.volumes:
                    reached |= _select_nodes(problem, volume.nodes)
                if claim.selected_node:
                    nodes = problem.snapshot.nodes
                    reached &= np.array([n.name == claim.selected_node for n in nodes], np.bool_)
            chosen &= reached
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason names the claims of the class."""
        claims = ", ".join(problem.classes.shapes[task_class].claims)
        return f"cannot reach the volumes of {claims}"

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`. Returns True if the class has claims that compete for volumes."""
        return bool(problem.derived(_find_scarce_claims).of_class[task_class])

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        supply = problem.derived(_find_scarce_claims)
        return _VolumeMatching(supply) if any(supply.of_class) else None

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`.

        Each claim is bound to at most one existing or new volume, and each volume to at most one
        claim. The tasks of a claim are placed only on nodes that reach its volume.
        """
        problem, model, supplied = nodes.gang_alone, nodes.model, nodes.supplied
        supply = problem.derived(_find_scarce_claims)
        of_volume: dict[str, list[int]] = {}
        for key, claim in supply.claims.items():
            chosen = model.add_variables(np.zeros(len(claim.volumes), np.int64), 1).tolist()
            # For each volume that the claim may be bound to: a 0-1 variable, and the mask (N,) of
            # the nodes that reach the volume.
            choices: list[tuple[int, Bool]] = []
            for volume, variable in zip(claim.volumes, chosen, strict=True):
                of_volume.setdefault(volume.name, []).append(variable)
                choices.append((variable, supply.reached[volume.name]))
            if claim.provisions:
                choices.append((int(model.add_variables(0, 1)[0]), supply.allowed[key]))
            model.add_row([x for x, _ in choices], [1] * len(choices), upper=1)
            for c in (c for c, keys in enumerate(supply.of_class) if key in keys):
                for node in np.flatnonzero(supplied[c] >= 0).tolist():
                    variable = int(supplied[c, node])
                    most = int(model.bounds[1][variable])
                    serving = [x for x, nodes_served in choices if nodes_served[node]]
                    if most > 0:
                        model.add_row([variable, *serving], [1, *[-most] * len(serving)], upper=0)
            for node in supply.in_use.get(key, ()):
                serving = [x for x, nodes_served in choices if nodes_served[node]]
                if serving:
                    model.add_row(serving, [1] * len(serving), lower=1)
        for variables in of_volume.values():
            if len(variables) > 1:
                model.add_row(variables, [1] * len(variables), upper=1)

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason names a claim that no node can use."""
        problem = outcome.problem
        for task in problem.tasks_of(gang):
            why = unusable(problem.snapshot, task.shape)
            if why:
                return Reason(ReasonCode.VOLUME, why)
        return None


def unusable(snapshot: Snapshot, shape: TaskShape) -> str:
    """Return why a claim in `shape` cannot be used on any node; empty if all claims are usable."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        if claim is None:
            return f"persistent volume claim {key} does not exist"
        if claim.problem:
            return f"persistent volume claim {key}: {claim.problem}"
    return ""


# --- claims that compete for volumes -------------------------------------------------------------


def _match_nodes(snapshot: Snapshot) -> Selects:
    nodes = snapshot.node_by_name
    return lambda selector, name: selector.matches(name, nodes[name].labels)


def _find_nodes_in_use(snapshot: Snapshot, scarce: set[str]) -> dict[str, dict[str, None]]:
    """Return the names of the nodes on which pods already use each scarce claim, by claim key.

    Scarce claims may compete for volumes (see `Claim.is_scarce`). A claim that cannot be matched to
    a volume is omitted.
    """
    found: dict[str, dict[str, None]] = {}
    for node in snapshot.nodes:
        for task in node.residents:
            for key in scarce.intersection(task.shape.claims):
                found.setdefault(key, {})[node.name] = None
    short = assign_volumes(snapshot.claims, found, _match_nodes(snapshot)).short if found else set()
    return {key: nodes for key, nodes in found.items() if key not in short}


@dataclass(frozen=True, eq=False, slots=True)
class _ScarceClaims:
    """The scarce claims of pending and running tasks; scarce claims compete for volumes.

    Attributes
    ----------
    of_class
        (C,) keys of the scarce claims of each task class.
    in_use
        Indices of the nodes on which pods already use each claim, by claim key.
    reached
        (N,) mask of the nodes that reach each volume, by volume name.
    reach
        (V, N) the masks in `reached` as one array.
    rows
        Row indices in `reach` of each claim's volumes, by claim key.
    allowed
        (N,) mask of the nodes on which a volume can be provisioned for each claim, by claim key.

    """

    claims: Mapping[str, Claim]
    of_class: Sequence[tuple[str, ...]]
    in_use: Mapping[str, Sequence[int]]
    reached: Mapping[str, Bool]
    reach: Bool
    rows: Mapping[str, I64]
    allowed: Mapping[str, Bool]

    def number_nodes(self, keys: Sequence[str]) -> I64:
        """Return a number per node (N,), equal for nodes that reach the same volumes for `keys`."""
        rows = np.unique(np.concatenate([self.rows[key] for key in keys]))
        columns = np.concatenate([self.reach[rows], np.array([self.allowed[key] for key in keys])])
        known: dict[bytes, int] = {}
        return np.array(
            [known.setdefault(column.tobytes(), len(known)) for column in columns.T], np.int64
        )

    def fitting_volumes(self, key: str, nodes: Collection[int]) -> VolumeRequest:
        """Return the volumes that a claim may be bound to if pods on all `nodes` use it."""
        at = np.array(list(nodes), np.int64)
        fits = self.reach[np.ix_(self.rows[key], at)].all(axis=1)
        volumes = self.claims[key].volumes
        fitting = tuple(volumes[i].name for i in np.flatnonzero(fits).tolist())
        return VolumeRequest(key, fitting, bool(self.allowed[key][at].all()))


def _find_scarce_claims(problem: Problem) -> _ScarceClaims:
    snapshot = problem.snapshot
    scarce = {key for key, claim in snapshot.claims.items() if claim.is_scarce}
    of_class = [tuple(k for k in s.claims if k in scarce) for s in problem.classes.shapes]
    if not any(of_class):
        nothing = np.zeros((0, problem.num_nodes), np.bool_)
        return _ScarceClaims({}, of_class, {}, {}, nothing, {}, {})
    number = {node.name: n for n, node in enumerate(snapshot.nodes)}
    used_on = _find_nodes_in_use(snapshot, scarce)
    named = dict.fromkeys([*(key for keys in of_class for key in keys), *used_on])
    claims = {key: snapshot.claims[key] for key in named}
    volumes = {v.name: v.nodes for claim in claims.values() for v in claim.volumes}
    reached = {name: _select_nodes(problem, nodes) for name, nodes in volumes.items()}
    row = {name: i for i, name in enumerate(volumes)}
    return _ScarceClaims(
        claims,
        of_class,
        {key: [number[node] for node in nodes] for key, nodes in used_on.items()},
        reached,
        np.array(list(reached.values()), np.bool_).reshape(len(reached), problem.num_nodes),
        {k: np.array([row[v.name] for v in c.volumes], np.int64) for k, c in claims.items()},
        {key: _select_nodes(problem, c.nodes) & bool(c.provisions) for key, c in claims.items()},
    )


def _select_nodes(problem: Problem, selector: NodeSelector | None) -> Bool:
    """Return a new mask (N,) of the nodes that match a selector; None stands for all nodes."""
    if selector is None:
        return np.ones(problem.num_nodes, np.bool_)
    return problem.columns.selects(selector)


class _VolumeMatching(Greedy):
    """A matching of claims to volumes, updated as tasks are placed."""

    def __init__(self, supply: _ScarceClaims) -> None:
        self._supply = supply
        self._used: dict[str, dict[int, int]] = {}
        self._node_groups: dict[int, I64] = {}
        self._holders = VolumeAssignment()
        for key, nodes in supply.in_use.items():
            for node in nodes:
                self._add_user(key, node, 1)

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        keys = self._supply.of_class[task_class]
        if not keys:
            return None
        allowed = self._open_nodes(keys[0])
        for key in keys[1:]:
            allowed &= self._open_nodes(key)
        if len(keys) > 1:
            # The claims of one task must be bound to different volumes.
            if task_class not in self._node_groups:
                self._node_groups[task_class] = self._supply.number_nodes(keys)
            group_of = self._node_groups[task_class]
            for group in np.unique(group_of[allowed]).tolist():
                same = allowed & (group_of == group)
                node = int(same.argmax())
                for key in keys:
                    self._add_user(key, node, 1)
                allowed[same] = self._holders.short.isdisjoint(keys)
                for key in reversed(keys):
                    self._add_user(key, node, -1)
        return allowed

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        for key in self._supply.of_class[task_class]:
            for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                self._add_user(key, node, count)

    def _add_user(self, key: str, node: int, count: int) -> None:
        """Add `count` users of a claim on a node; claims with users are matched to a volume."""
        used = self._used.setdefault(key, {})
        used[node] = used.get(node, 0) + count
        if used[node] <= 0:
            del used[node]
        if used:
            self._holders.assign(self._supply.fitting_volumes(key, used))
        else:
            self._holders.remove(key)

    def _open_nodes(self, key: str) -> Bool:
        """Return the mask (N,) of nodes on which one more pod could use the volume of a claim."""
        supply, used = self._supply, self._used.get(key, {})
        request = supply.fitting_volumes(key, used)
        found = (
            supply.allowed[key].copy() if request.is_made else np.zeros_like(supply.allowed[key])
        )
        for volume in self._holders.usable_volumes(key, request.volumes):
            found |= supply.reached[volume]
        return found


_BETA = "failure-domain.beta.kubernetes.io"
_NOW = "topology.kubernetes.io"
_RENAMED = {f"{_BETA}/{part}": f"{_NOW}/{part}" for part in ("region", "zone")}
_LABELS = (*_RENAMED, *_RENAMED.values())


class VolumeZone(Rule):
    """Rule: tasks on a node with zone labels use only volumes of the node's zone and region."""

    name = "volume-zone"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            for key, label, values in _list_zones(world.snapshot, task.shape):
                # A node without zone and region labels reaches all volumes.
                has_zones = any(known in node.labels for known in _LABELS)
                own = node.labels.get(label, node.labels.get(_RENAMED.get(label, label)))
                if has_zones and own not in values:
                    where = f"{label} {' or '.join(values)}"
                    detail = f"the volume of claim {key} is in {where}, node {node.name} is not"
                    yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        zones = list(_list_zones(problem.snapshot, problem.classes.shapes[task_class]))
        if not zones:
            return None
        chosen = np.ones(problem.num_nodes, np.bool_)
        for _, label, values in zones:
            is_in_zone = Requirement(label, Operator.IN, values)
            unlabelled = tuple(Requirement(k, Operator.DOES_NOT_EXIST) for k in _LABELS)
            terms = [(is_in_zone,), unlabelled]
            if label in _RENAMED:
                by_new_name = Requirement(_RENAMED[label], Operator.IN, values)
                terms.append((Requirement(label, Operator.DOES_NOT_EXIST), by_new_name))
            chosen &= problem.columns.selects(NodeSelector(tuple(map(NodeTerm, terms))))
        return chosen

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`. The rejection reason lists the claims and the zones of their volumes."""
        zones = _list_zones(problem.snapshot, problem.classes.shapes[task_class])
        described = (f"claim {key} ({label} {' or '.join(values)})" for key, label, values in zones)
        return f"did not match the zone of the volume of {', '.join(described)}"


def _list_zones(snapshot: Snapshot, shape: TaskShape) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (claim key, label, values) for each zone label of the volumes that tasks claim."""
    for key in shape.claims:
        claim = snapshot.claims.get(key)
        for label, values in claim.zones if claim is not None else ():
            yield key, label, values


FULL = 100
TENTH = 10
"""Factor from configured points (0 to 10) to scores (0 to 100)."""


@dataclass(frozen=True)
class VolumeFill(Rule):
    """Scores nodes by the utilization of the existing volumes to which a task's claims would bind.

    Attributes
    ----------
    shape
        (utilization in percent, points from 0 to 10) pairs, sorted by utilization. Between two
        neighbouring pairs, the score is interpolated linearly.

    """

    name = "volume-fill"

    shape: tuple[tuple[int, int], ...]
    weight: int = 1

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`.

        The score is 0 on a node if no existing volume would be bound there, or if a claim cannot be
        bound there.
        """
        known = problem.snapshot.claims
        keys = problem.classes.shapes[task_class].claims
        claims = {key: known[key] for key in keys if key in known and known[key].is_scarce}
        if not claims:
            return None
        number = {node.name: n for n, node in enumerate(problem.snapshot.nodes)}
        selects = cache(problem.columns.selects)
        volumes = {volume.name: volume for claim in claims.values() for volume in claim.volumes}
        scores = np.zeros(problem.num_nodes)
        for n, node in enumerate(problem.snapshot.nodes):
            holders = assign_volumes(
                claims,
                dict.fromkeys(claims, (node.name,)),
                lambda selector, name: bool(selects(selector)[number[name]]),
            )
            if not holders.short and holders.claim_by_volume:
                scores[n] = self.weight * self.points(
                    [
                        (claims[key].size_bytes, volumes[volume])
                        for volume, key in holders.claim_by_volume.items()
                    ]
                )
        return scores

    def points(self, chosen: Sequence[tuple[int, Volume]]) -> int:
        """Return the score (0 to 100) of (requested bytes, volume) pairs.

        The score is the mean, over the storage classes of the volumes, of the score at the total
        utilization of the class's volumes.
        """
        requested: dict[str, list[int]] = {}
        for size_bytes, volume in chosen:
            total = requested.setdefault(volume.storage_class, [0, 0])
            total[0] += size_bytes
            total[1] += volume.capacity_bytes
        points = 0
        for size_bytes, capacity_bytes in requested.values():
            is_full = capacity_bytes == 0 or size_bytes > capacity_bytes
            points += self._points_at(FULL if is_full else size_bytes * FULL // capacity_bytes)
        return (2 * points + len(requested)) // (2 * len(requested)) if requested else 0

    def _points_at(self, percent: int) -> int:
        """Return the score at a utilization in percent, rounded as in kube-scheduler."""
        shape = [(at, points * TENTH) for at, points in self.shape]
        if percent <= shape[0][0]:
            return shape[0][1]
        for (left, low), (right, high) in pairwise(shape):
            if percent <= right:
                rise = (high - low) * (percent - left)
                step = abs(rise) // (right - left)
                return low + (step if rise >= 0 else -step)
        return shape[-1][1]
