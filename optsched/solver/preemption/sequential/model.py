"""The level model of an eviction problem: the victims and placements for one gang.

The first levels decide whether the gang starts, and maximise the number of its tasks that start.
The next levels minimise the number and the cost of the victims. The last level minimises the number
of tasks outside the preferred shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.problem.linear import Expression, LinearModel
from optsched.solver.cpsat.level_model import LevelModel, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.solver.preemption.sequential.blockers import Blockers
    from optsched.solver.preemption.sequential.eviction_problem import (
        EvictionProblem,
        Groups,
        GuaranteeReserve,
        Lending,
        VictimGang,
    )
    from optsched.solver.preemption.sequential.heuristic import HeuristicSolution

START, TASKS, VICTIMS = "start", "tasks", "victims"
ENDED = "gangs that leave whole"
PATIENCE, QUEUES = "victims of queues without a limit", "importance of queues"
IMPORTANCE, LOST, SIZE = "importance", "lost work", "size of victims"
OUTSIDE = "outside the shard"


@dataclass(frozen=True, eq=False)
class Encoded:
    """The level model of an eviction problem, and what its variables count.

    Attributes
    ----------
    evict, whole
        (K,) variables that count the victims of each group, and (J,) binary variables that are 1 if
        a victim gang is evicted entirely.
    entry, node, place
        (X,) entry and node of each placement variable, and the variable that counts the entry's
        tasks on the node, as parallel arrays.

    """

    model: LevelModel
    levels: tuple[str, ...]
    evict: I64
    whole: I64
    entry: I64
    node: I64
    place: I64


def encode_eviction(
    eviction: EvictionProblem, known: HeuristicSolution | None, blockers: Blockers
) -> Encoded:
    """Encode an eviction problem as a level model, with the solution `known` as a hint."""
    model, groups = LinearModel(), eviction.groups
    evict = model.add_variables(0, groups.count)
    after = groups.release_capacity(eviction.future_idle, groups.count)
    most = np.zeros(eviction.allowed.shape, np.int64)
    for e, request in enumerate(eviction.request):
        requested = np.flatnonzero(request)
        fits = (after[:, requested] // request[requested]).min(axis=1, initial=2**40)
        most[e] = np.where(eviction.allowed[e], np.minimum(fits, eviction.most[e]), 0)
    entry, node = np.nonzero(most > 0)
    place = model.add_variables(0, most[entry, node])
    (start,) = model.add_variables(0, 1)
    whole = model.add_variables(
        0, np.array([int(w.may_end) for w in eviction.constraints.wholes], np.int64)
    )
    _capacity_rows(model, eviction, evict, (entry, node, place))
    _start_rows(model, eviction, int(start), (entry, place))
    add_whole_rows(model, (groups, eviction.constraints.wholes), evict, whole)
    _limit_rows(model, eviction, int(start), evict, (entry, place))
    _blocked_rows(model, eviction, evict, (entry, node, place))
    _use_rows(model, eviction, (evict, whole), (node, place))
    if eviction.constraints.others is not None:
        supplied = np.full(eviction.allowed.shape, -1, np.int64)
        supplied[entry, node] = place
        blockers.relate(eviction, model, supplied, evict)
    for reserve in eviction.constraints.reserves:
        _reserve_rows(model, eviction, reserve, evict, (entry, place))
    for lending in eviction.constraints.lendings:
        _lending_rows(model, eviction, evict, lending)
    levels, objectives = _objectives(eviction, int(start), (evict, whole), (node, place))
    lower, upper = model.bounds
    hint = lower.copy()
    if known is not None:
        hint[evict], hint[place], hint[start] = known.evicted, known.placed[entry, node], 1
        hint[whole] = known.left
    kin = np.full(len(lower), -1, np.int64)
    levels_of = LevelModel(lower, upper, model.rows, tuple(objectives), hint, kin)
    return Encoded(levels_of, tuple(levels), evict, whole, entry, node, place)


def _capacity_rows(
    model: LinearModel, eviction: EvictionProblem, evict: I64, places: tuple[I64, I64, I64]
) -> None:
    """Add rows Σ request·placed − Σ request·evicted ≤ future idle, per node and resource."""
    entry, node, place = places
    groups = eviction.groups
    used = np.unique(node)
    at = np.full(eviction.future_idle.shape[0], -1, np.int64)
    at[used] = np.arange(len(used))
    here = np.flatnonzero(at[groups.node] >= 0)
    for r in np.flatnonzero(eviction.request.any(axis=0)).tolist():
        takes = np.flatnonzero(eviction.request[entry, r])
        gives = here[groups.request[here, r] > 0]
        model.add_rows(
            np.concatenate([at[node[takes]], at[groups.node[gives]]]),
            np.concatenate([place[takes], evict[gives]]),
            np.concatenate([eviction.request[entry[takes], r], -groups.request[gives, r]]),
            upper=eviction.future_idle[used, r],
        )


def _blocked_rows(
    model: LinearModel, eviction: EvictionProblem, evict: I64, places: tuple[I64, I64, I64]
) -> None:
    """Add rows that allow tasks on a blocked node only if all blocking tasks are evicted."""
    entry, node, place = places
    _, most = model.bounds
    for entries, nodes, groups in eviction.constraints.blocked:
        mine = place[np.isin(entry, entries) & np.isin(node, nodes)]
        (cleared,) = model.add_variables(0, 1)
        total = int(most[mine].sum())
        model.add_rows(0, np.append(mine, cleared), np.append(np.ones_like(mine), -total), upper=0)
        rows, minus = np.arange(len(groups)), -np.ones(len(groups), np.int64)
        model.add_rows(
            np.concatenate([rows, rows]),
            np.concatenate([np.full(len(groups), cleared), evict[groups]]),
            np.concatenate([eviction.groups.count[groups], minus]),
            upper=np.zeros(len(groups), np.int64),
        )


def _use_rows(
    model: LinearModel, eviction: EvictionProblem, leaving: tuple[I64, I64], places: tuple[I64, I64]
) -> None:
    """Add rows: a reclaiming gang evicts tasks of its own queue only on nodes that the gang uses.

    If a victim gang is evicted entirely, it suffices that the preempting gang uses one of the
    victim gang's nodes; see `Entitled`. No rows are added if rules on other pods may require
    evictions on other nodes.
    """
    groups, (evict, whole), (node, place) = eviction.groups, leaving, places
    limits = eviction.constraints.limits
    within_claims = [limit.groups for limit in limits if limit.claimed is not None]
    counted = np.unique(np.concatenate([*within_claims, np.zeros(0, np.int64)]))
    own = counted[~groups.reclaimed[counted]]
    if not len(own) or eviction.constraints.blocked or eviction.constraints.others is not None:
        return
    coming: dict[int, list[int]] = {}
    for at, variable in zip(node.tolist(), place.tolist(), strict=True):
        coming.setdefault(at, []).append(variable)
    homes: dict[int, set[int]] = {}
    for k in own.tolist():
        here, count = coming.get(int(groups.node[k]), []), int(groups.count[k])
        j = int(groups.gang[k])
        leaves = [int(whole[j])] if j >= 0 else []
        homes.setdefault(j, set()).update(here)
        used = [*here, *leaves]
        model.add_row([int(evict[k]), *used], [1, *[-count] * len(used)], upper=0)
    for j, here_of in homes.items():
        if j >= 0:
            used = sorted(here_of)
            model.add_row([int(whole[j]), *used], [1, *[-1] * len(used)], upper=0)


def _start_rows(
    model: LinearModel, eviction: EvictionProblem, start: int, places: tuple[I64, I64]
) -> None:
    """Add rows Σ x ≤ `most`·y per entry and in total, and Σ x ≥ `need`·y per role and in total.

    x counts the placed tasks of an entry, and y is 1 if the gang starts.
    """
    entry, place = places
    if eviction.most_in_all < int(eviction.most.sum()):
        ones = np.ones_like(place)
        model.add_rows(0, np.append(place, start), np.append(ones, -eviction.most_in_all), upper=0)
    for e, most in enumerate(eviction.most.tolist()):
        mine = place[entry == e]
        model.add_rows(0, np.append(mine, start), np.append(np.ones_like(mine), -most), upper=0)
    needs = [(np.ones(len(entry), np.bool_), eviction.need)]
    needs += [(eviction.role[entry] == role, least) for role, least in eviction.need_role]
    for chosen, least in needs:
        if least:
            mine = place[chosen]
            factors = np.append(np.ones_like(mine), -least)
            model.add_rows(0, np.append(mine, start), factors, lower=0)


def add_whole_rows(
    model: LinearModel, victims: tuple[Groups, Sequence[VictimGang]], evict: I64, whole: I64
) -> None:
    """Add rows that keep the minimum of each victim gang unless the gang is evicted entirely.

    `evict` (K,) holds the variables that count the victims of each group. `whole` (J,) holds the
    binary variables that are 1 if a gang is evicted entirely.
    """
    groups, wholes = victims
    by_gang = np.argsort(groups.gang, kind="stable")
    start = np.searchsorted(groups.gang[by_gang], np.arange(len(wholes) + 1)).tolist()
    for j, (gang, leaves) in enumerate(zip(wholes, whole.tolist(), strict=True)):
        mine = by_gang[start[j] : start[j + 1]]
        variables, ones = [*evict[mine].tolist(), leaves], [1] * len(mine)
        rest = gang.held - gang.surplus
        model.add_row(variables, [*ones, -rest], upper=gang.surplus)
        if gang.may_end:
            model.add_row(variables, [*ones, -gang.held], lower=0)
        for role, held, surplus in gang.by_role:
            some = evict[mine[groups.role[mine] == role]].tolist()
            model.add_row([*some, leaves], [*[1] * len(some), surplus - held], upper=surplus)
        if gang.parts or gang.spare_parts:
            by_part = [evict[mine[groups.part[mine] == p]] for p in range(len(gang.parts))]
            _sub_group_rows(model, gang, by_part, leaves)


def _sub_group_rows(model: LinearModel, gang: VictimGang, evict: list[I64], whole: int) -> None:
    """Add rows: subgroups lose only surplus tasks or all tasks, and enough subgroups remain."""
    ended = model.add_variables(0, np.array([int(p.may_end) for p in gang.parts], np.int64))
    for part, mine, leaves in zip(gang.parts, evict, ended.tolist(), strict=True):
        ones = np.ones(len(mine), np.int64)
        variables = np.append(mine, leaves)
        model.add_rows(0, variables, np.append(ones, part.surplus - part.held), upper=part.surplus)
        if part.may_end:
            model.add_rows(0, variables, np.append(ones, -part.held), lower=0)
    for policy, spare in gang.spare_parts:
        # Only subgroups of full size count towards the gang's minimum; the other subgroups may be
        # evicted.
        counts = [p.policy == policy and p.surplus < p.held for p in gang.parts]
        some = ended[np.array(counts, np.bool_)]
        factors = np.append(np.ones(len(some), np.int64), -len(some))
        model.add_rows(0, np.append(some, whole), factors, upper=spare)


def _limit_rows(
    model: LinearModel, eviction: EvictionProblem, start: int, evict: I64, places: tuple[I64, I64]
) -> None:
    """Add the rows of all limits; a row is active if the gang starts or reclaims.

    Each row is Σ weight·evicted + Σ request·placed ≤ `most`.
    """
    entry, place = places
    groups = eviction.groups
    switches: dict[bytes, int] = {}
    for limit in eviction.constraints.limits:
        variables, factors = evict[limit.groups], limit.weights
        largest = int(np.maximum(limit.weights, 0) @ groups.count[limit.groups])
        if limit.resource >= 0:
            variables = np.concatenate([variables, place])
            factors = np.concatenate([factors, eviction.request[entry, limit.resource]])
            largest += int(eviction.request[:, limit.resource] @ eviction.most)
        slack = max(largest - limit.most, 0)
        # The row is inactive if `switch` is 0.
        switch = start
        if limit.claimed is not None:
            key = limit.claimed.tobytes()
            if key not in switches:
                # `claims` is 1 if a task of the groups `claimed` is evicted.
                (claims,) = model.add_variables(0, 1)
                ones, total = np.ones_like(limit.claimed), groups.count[limit.claimed].sum()
                claimed = np.append(evict[limit.claimed], claims)
                model.add_rows(0, claimed, np.append(ones, -int(total)), upper=0)
                switches[key] = int(claims)
            switch = switches[key]
        if limit.claimed is not None or limit.most < 0:
            variables, factors = np.append(variables, switch), np.append(factors, slack)
            most = limit.most + slack
        else:
            most = limit.most
        model.add_rows(0, variables, factors, upper=most)


def _reserve_rows(
    model: LinearModel,
    eviction: EvictionProblem,
    reserve: GuaranteeReserve,
    evict: I64,
    places: tuple[I64, I64],
) -> None:
    """Add rows: the gang uses only unused guarantees, or all queues' claims fit in the cluster.

    `reserve.pool` is the cluster's capacity that pods without a gang do not use. The variables
    `claim` are the queues' claims before the gang starts. The variables `unused` are the unused
    guarantees of the gang's queue and its ancestors. The variable `grows` is the amount that the
    gang adds to the claims. See models/formulation/guarantee.md.
    """
    groups, r = eviction.groups, reserve.resource
    floor, parent_of = reserve.floor, reserve.parent_of
    most = int(floor.sum() + reserve.used.sum() + reserve.pool)
    claim = model.add_variables(floor, most)
    line = [reserve.queue]
    while parent_of[line[-1]] >= 0:
        line.append(int(parent_of[line[-1]]))
    unused = model.add_variables(0, floor[line])
    leaves = model.add_variables(0, np.ones(len(line), np.int64))
    (grows,) = model.add_variables(0, most)
    (may_grow,) = model.add_variables(0, 1)
    for q in range(len(claim)):
        below = claim[parent_of == q]
        mine = np.flatnonzero((groups.queue == q) & (groups.request[:, r] > 0))
        held, minus = groups.request[mine, r], -np.ones(len(below), np.int64)
        need = (np.concatenate([below, evict[mine]]), np.concatenate([minus, held]))
        used = int(reserve.used[q])
        model.add_rows(0, np.append(need[0], claim[q]), np.append(need[1], 1), lower=used)
        if q in line:
            i = line.index(q)
            # `unused` is at most `floor` − `need` if the variable `leaves` is 1, and otherwise 0
            model.add_rows(
                0,
                np.concatenate([need[0], unused[[i]], leaves[[i]]]),
                np.concatenate([-need[1], [1, most]]),
                upper=int(floor[q]) - used + most,
            )
            model.add_rows(0, [unused[i], leaves[i]], [1, -most], upper=0)
    entry, place = places
    takes = np.flatnonzero(eviction.request[entry, r])
    model.add_rows(
        0,
        np.concatenate([place[takes], unused, [grows]]),
        np.concatenate([eviction.request[entry[takes], r], -np.ones(len(line) + 1, np.int64)]),
        upper=0,
    )
    top = claim[parent_of < 0]
    ones = np.ones(len(top) + 1, np.int64)
    joint = np.concatenate([top, [grows, may_grow]])
    model.add_rows(0, joint, np.append(ones, len(top) * most), upper=reserve.pool + len(top) * most)
    model.add_rows(0, [grows, may_grow], [1, -most], upper=0)


def _lending_rows(
    model: LinearModel, eviction: EvictionProblem, evict: I64, lending: Lending
) -> None:
    """Add rows: before its last eviction, a lender must hold excess resources.

    The last unit evicted is a task, or the tasks that a gang or subgroup loses together.
    """
    groups = eviction.groups
    only = lending.options[0] if len(lending.options) == 1 else None
    if only is not None and only.need == 1 and np.isin(only.below, lending.groups).all():
        weights = groups.request[only.below, only.resource]
        model.add_rows(0, evict[only.below], weights, upper=max(only.most, 0))
        return
    (lends,) = model.add_variables(0, 1)
    total = int(groups.count[lending.groups].sum())
    ones = np.ones(len(lending.groups), np.int64)
    model.add_rows(0, np.append(evict[lending.groups], lends), np.append(ones, -total), upper=0)
    chosen = model.add_variables(0, np.ones(len(lending.options), np.int64))
    picks = np.append(np.ones(len(chosen), np.int64), -1)
    model.add_rows(0, np.append(chosen, lends), picks, lower=0)
    for pick, option in zip(chosen.tolist(), lending.options, strict=True):
        below, most = option.below, option.most
        weights = groups.request[below, option.resource]
        largest = int((weights * groups.count[below]).sum())
        slack = max(largest - most, 0)
        model.add_rows(
            0, np.append(evict[below], pick), np.append(weights, slack), upper=most + slack
        )
        enough = np.append(np.ones(len(option.members), np.int64), -option.need)
        model.add_rows(0, np.append(evict[option.members], pick), enough, lower=0)


def _objectives(
    eviction: EvictionProblem, start: int, leaving: tuple[I64, I64], places: tuple[I64, I64]
) -> tuple[list[str], list[Objective]]:
    groups, (evict, whole), (node, place) = eviction.groups, leaving, places
    found: list[tuple[str, Objective]] = []
    if not eviction.is_started:
        found.append((START, Objective(Expression.of([start], [1]), Sense.MAX)))
    if eviction.is_started or eviction.need < eviction.most_in_all:
        found.append((TASKS, Objective(Expression.of(place, np.ones_like(place)), Sense.MAX)))
    costs = [
        (VICTIMS, np.ones(len(groups), np.int64)),
        (PATIENCE, groups.returned_last.astype(np.int64)),
        (QUEUES, groups.queue_priority),
        (IMPORTANCE, groups.priority - groups.priority.min(initial=0)),
        (LOST, groups.lost),
        (SIZE, groups.size),
    ]
    for name, cost in costs:
        if name == VICTIMS or len(np.unique(cost)) > 1:
            found.append((name, Objective(Expression.of(evict, cost), Sense.MIN)))
        if name == VICTIMS and eviction.constraints.wholes:
            single = evict[groups.gang < 0]
            ended = np.concatenate([single, whole])
            found.append((ENDED, Objective(Expression.of(ended, np.ones_like(ended)), Sense.MIN)))
    away = eviction.second[node].astype(np.int64)
    if len(np.unique(away)) > 1:
        found.append((OUTSIDE, Objective(Expression.of(place, away), Sense.MIN)))
    return [name for name, _ in found], [objective for _, objective in found]
