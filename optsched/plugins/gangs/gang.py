"""Gangs and their subgroups: either all required tasks start together, or none of them starts.

Mathematics: models/formulation/gang.md and models/formulation/sub_groups.md. `next_entries` and
`next_requests` return the tasks that a gang must place together next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Plugin
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.arrays import frozen
from optsched.problem.running import running_tasks
from optsched.problem.shapes import NO_PART, find_subgroups
from optsched.units import amount_text, count_noun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Gang as GangObject
    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangShape


class Gang(Rule):
    """Rule: a gang starts with its minimum of tasks, in total and per role, or not at all."""

    name = "gang"
    hard_switch = Switch.JOB_READY

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for key, placed in world.placed_of.items():
            gang = world.snapshot.gang_by_key[key]
            ready = [t for t in gang.tasks if t.status.counts_as_ready] + placed
            if len(ready) < gang.min_member:
                tasks = count_noun(len(ready), "task")
                detail = f"{tasks} would run, but minMember is {gang.min_member}"
                yield Violation(self.name, f"gang {key}", detail)
            for role, least in gang.role_minimums:
                have = sum(t.role == role for t in ready)
                if have < least:
                    tasks = count_noun(have, "task")
                    detail = f"{tasks} of role {role} would run, but minTaskMember is {least}"
                    yield Violation(self.name, f"gang {key}", detail)
        starting = []
        for gang in (world.snapshot.gang_by_key[key] for key in world.placed_of):
            ready = [t for t in gang.tasks if t.status.counts_as_ready]
            if is_below_minimum(gang, ready):
                starting.append(gang)
        if any(gang.min_resources for gang in starting):
            waits = {p.gang.key for p in world.nominations}
            now = [gang for gang in starting if gang.key not in waits]
            yield from self._verify_free(now, [p.task for p in world.placements], _free(world))
            everything = [t for placed in world.placed_of.values() for t in placed]
            later = _free(world, TaskStatus.RELEASING)
            yield from self._verify_free(starting, everything, later)

    def _verify_free(
        self, starting: Sequence[GangObject], placed: Sequence[Task], free: Mapping[str, int]
    ) -> Iterator[Violation]:
        """Check that idle resources cover the minResources of starting gangs and all placements.

        The minResources of each gang is checked alone, and all placements are checked together. The
        check of all placements also counts the part of minResources that exceeds the requests of a
        starting gang.
        """
        taken = summed(task_usage(t) for t in placed)
        named: set[str] = set()
        for gang in starting:
            waits = [t for t in gang.tasks if t.status is TaskStatus.PENDING and t.problem is None]
            ready = [t for t in gang.tasks if t.status.counts_as_ready]
            # Pending tasks of incomplete subgroups are not placed in this session.
            short = find_subgroups(gang, ready, waits).short
            requested = summed(task_usage(t) for t in waits if t.key not in short)
            missing = _still_missing(gang)
            named.update(missing)
            for resource, least in missing.items():
                if least > free.get(resource, 0):
                    detail = f"minResources requests {amount_text(resource, least)}, more than idle"
                    yield Violation(self.name, f"gang {gang.key}", detail)
                excess = max(0, least - requested.get(resource, 0))
                taken[resource] = taken.get(resource, 0) + excess
        for resource, amount in taken.items():
            if resource in named and amount > free.get(resource, 0):
                idle = amount_text(resource, free.get(resource, 0))
                detail = f"needs {amount_text(resource, amount)}, but only {idle} is idle"
                yield Violation(self.name, "minResources", detail)

    def encode(self, form: Formulation) -> None:
        """Add constraints that started gangs place their minimum, in total and per role.

        The constraints are x[f] ≤ count[f] · y[h] and Σ_f x[f] ≥ need[h] · y[h]. For gang class h,
        y[h] is the number of started gangs, and x[f] is the number of placed tasks of a set f of
        equal tasks. A gang has count[f] tasks of the set f and must place need[h] tasks.

        The constraints are omitted for gangs that place all tasks or none: their x[f] equals
        count[f] · y[h]. Further constraints keep placements and minResources within idle capacity.
        """
        gangs, model = form.gangs, form.model
        starts = form.start[gangs.gang_class_of]
        bound = np.flatnonzero(form.is_flexible & (starts >= 0))
        rows = np.arange(len(bound), dtype=np.int64)
        model.add_rows(
            np.concatenate([rows, rows]),
            np.concatenate([form.placed_variable[bound], starts[bound]]),
            np.concatenate([np.ones(len(bound), np.int64), -gangs.per_gang[bound]]),
            upper=np.zeros(len(bound), np.int64),
        )
        for h in np.unique(gangs.gang_class_of[bound]).tolist():
            entries = range(int(gangs.start[h]), int(gangs.start[h + 1]))
            shape = form.problem.shapes.shapes[int(gangs.shape_of[h])]
            _add_minimum_row(form, list(entries), shape.need, int(form.start[h]))
            for role, need in shape.need_role:
                chosen = [
                    f for f, entry in zip(entries, shape.entries, strict=True) if entry.role == role
                ]
                _add_minimum_row(form, chosen, need, int(form.start[h]))
        least = form.problem.shapes.least[gangs.shape_of]
        free = form.problem.idle.sum(axis=0) - form.problem.kept
        hopeless = np.flatnonzero((least > free).any(axis=1))
        rows = np.arange(len(hopeless))
        model.add_rows(rows, form.start[hopeless], 1, upper=np.zeros(len(hopeless), np.int64))
        excess = excess_resources(form.problem)[gangs.shape_of]
        for r in np.flatnonzero(least.any(axis=0) | (form.problem.kept > 0)).tolist():
            use = form.placed(form.problem.classes.request[gangs.class_of, r])
            kept = np.flatnonzero(excess[:, r])
            model.add_rows(
                0,
                np.concatenate([use.variables, form.start[kept]]),
                np.concatenate([use.coefficients, excess[kept, r]]),
                upper=max(int(free[r]), 0),
            )

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        """See `Rule`."""
        switch = _OrderWithMinResources if problem.shapes.least.any() else _Order
        return switch(problem, ledger)

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason is that minResources exceeds the idle resources of the cluster."""
        problem = outcome.problem
        least = problem.shapes.least[problem.shape_of[gang]]
        free = outcome.idle_total
        for r in np.flatnonzero(least > free).tolist():
            name = problem.resources[r]
            return Reason(
                ReasonCode.MIN_RESOURCES,
                f"minResources requests {amount_text(name, int(least[r]))}, "
                f"the cluster has {amount_text(name, int(free[r]))} free",
            )
        return None


def is_below_minimum(gang: GangObject, tasks: Sequence[Task]) -> bool:
    """Return whether the given tasks of a gang are fewer than its minimum.

    The minimum applies to the number of tasks, in total and per role.
    """
    return len(tasks) < gang.min_member or any(
        sum(t.role == role for t in tasks) < least for role, least in gang.role_minimums
    )


def _still_missing(gang: GangObject) -> dict[str, int]:
    """Return `minResources` minus the resources that succeeded tasks have used."""
    least_of = dict(gang.role_minimums)
    succeeded: dict[str, list[Task]] = {}
    for task in gang.tasks if gang.min_resources else ():
        if task.status is TaskStatus.SUCCEEDED:
            succeeded.setdefault(task.role, []).append(task)
    counted = [t for role, tasks in succeeded.items() for t in tasks[: least_of.get(role, 0)]]
    rest = [t for role, tasks in succeeded.items() for t in tasks[least_of.get(role, 0) :]]
    rest.sort(key=lambda task: task.order)
    of_any_role = gang.min_member - sum(least_of.values())
    used = summed(task_usage(t) for t in (*counted, *rest[:of_any_role]))
    missing = {r: least - used.get(r, 0) for r, least in gang.min_resources}
    return {r: amount for r, amount in missing.items() if amount > 0}


def _free(world: World, *excluded: TaskStatus) -> dict[str, int]:
    """Return the idle resources of ready nodes, ignoring pods whose status is in `excluded`."""
    free: dict[str, int] = {}
    for node in world.snapshot.nodes:
        if node.ready:
            held = summed(task_usage(t) for t in node.residents if t.status not in excluded)
            for resource, amount in world.offers(node).items():
                left = max(0, amount - held.get(resource, 0))
                free[resource] = free.get(resource, 0) + left
    return free


def _add_minimum_row(form: Formulation, entries: list[int], need: int, start: int) -> None:
    """Add the constraint Σ x[f] ≥ need · y over the sets f of equal tasks in `entries`.

    x[f] is the number of placed tasks of f; y is the variable `start`, the number of started gangs.
    """
    if need:
        variables = np.append(form.placed_variable[entries], start)
        factors = np.append(form.placed_factor[entries], -need)
        form.model.add_rows(0, variables, factors, lower=0)


def excess_resources(problem: Problem) -> I64:
    """Return the resources (S, R) by which minResources exceeds a gang's pending requests.

    The axis S numbers the distinct `GangShape` objects.
    """
    shapes = problem.shapes
    requested = np.zeros_like(shapes.least)
    use = problem.classes.request[shapes.class_of] * shapes.count[:, None]
    np.add.at(requested, shapes.shape_of_entry, use)
    excess: I64 = np.maximum(shapes.least - requested, 0)
    return excess


class _Order(Greedy):
    """Orders gangs: first partly running, then unstarted, then started (Volcano `gang.go`).

    A partly running gang runs fewer tasks than its minimum. The tasks of a partly running gang
    occupy devices but do no work until the gang's other tasks run.
    """

    orders_by_class = True

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        self._ledger = ledger
        # Number of tasks that each gang still requires; negative if it runs more than its minimum.
        self._need: list[int] = (problem.min_member - problem.num_ready).tolist()
        self._is_running: list[bool] = (problem.num_ready > 0).tolist()
        self._problem = problem
        # Gangs that run more than their minimum, given the entries of `gang_log` before
        # `_log_read`.
        self._has_spare: Bool = problem.num_ready > problem.min_member
        self._log_read = 0

    def is_starving(self, gang: int) -> bool:
        return self._ledger.gang_placed[gang] < self._need[gang]

    def preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """Return the victims that their gangs can lose without falling below their minimum."""
        gang_of, ledger = running_tasks(self._problem).gang_of, self._ledger
        spare: dict[int, int] = {}
        chosen = []
        for v in victims.tolist():
            loser = int(gang_of[v])
            if loser not in spare:
                gained = ledger.gang_placed[loser] - ledger.gang_evicted[loser]
                spare[loser] = gained - self._need[loser]
            if spare[loser] > 0:
                spare[loser] -= 1
                chosen.append(v)
        return np.array(chosen, np.int64)

    reclaimable = preemptable

    def preempt_reach(self, gang: int) -> Bool:
        """See `VictimReach`. Selects the tasks of gangs that run more than their minimum."""
        ledger = self._ledger
        for other in set(ledger.gang_log[self._log_read :]):
            gained = ledger.gang_placed[other] - ledger.gang_evicted[other]
            self._has_spare[other] = gained > self._need[other]
        self._log_read = len(ledger.gang_log)
        reach: Bool = self._has_spare[running_tasks(self._problem).gang_of]
        return reach

    reclaim_reach = preempt_reach

    def gang_preemptable(self, gang: int, task_class: int, victims: I64) -> I64:
        """See `GangPreemption`.

        All victims are allowed, because `gangpreempt` and `gangreclaim` may evict entire gangs.
        """
        return victims

    gang_reclaimable = gang_preemptable

    def gang_key(self, gang: int) -> tuple[float, ...]:
        if self._ledger.gang_placed[gang] >= self._need[gang]:
            return (2.0,)
        return (0.0,) if self._is_running[gang] else (1.0,)


class _OrderWithMinResources(_Order):
    """Orders gangs, and checks the minResources of a gang when it starts."""

    def __init__(self, problem: Problem, ledger: Ledger) -> None:
        super().__init__(problem, ledger)
        shape = np.maximum(problem.shape_of, 0)
        self._least: list[list[int]] = problem.shapes.least[shape].tolist()
        self._excess: list[list[int]] = excess_resources(problem)[shape].tolist()
        self._free: list[int] = problem.idle.sum(axis=0).tolist()
        self._kept = [0] * len(problem.resources)
        self._started: set[int] = set()

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        starts = self._ledger.gang_placed[gang] > 0
        if starts is (gang in self._started):
            return
        sign = 1 if starts else -1
        self._kept = [k + sign * e for k, e in zip(self._kept, self._excess[gang], strict=True)]
        self._started ^= {gang}

    def may_start(self, gang: int) -> bool:
        return self._suffices(self._ledger.coming_total, self._least[gang])

    def holds(self, gang: int) -> bool:
        ledger, nothing = self._ledger, [0] * len(self._kept)
        if not self._suffices(ledger.coming_total, nothing):
            return False
        if ledger.gang_waiting[gang]:
            both = zip(self._least[gang], self._free, ledger.leaving_total, strict=True)
            return all(least <= free + leaving for least, free, leaving in both)
        is_free = all(a <= b for a, b in zip(self._least[gang], self._free, strict=True))
        return is_free and self._suffices(ledger.idle_total, nothing)

    def _suffices(self, idle: list[int], least: list[int]) -> bool:
        """Return whether `idle` (R,) covers `least` (R,) plus the reserve for started gangs."""
        return all(a <= b - k for a, b, k in zip(least, idle, self._kept, strict=True))


PLUGIN = Plugin("gang", "gangs start together or not at all", (), lambda _: (Gang(), SubGroups()))


class SubGroups(Rule):
    """Rule: a gang starts with enough complete subgroups, or not at all.

    The greedy pipeline places each subgroup entirely or not at all; see `solver.greedy.topology`.
    """

    name = "sub-groups"
    hard_switch = Switch.SUB_JOB_READY

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for key, placed in world.placed_of.items():
            gang = world.snapshot.gang_by_key[key]
            if not gang.sub_groups:
                continue
            where = f"gang {key}"
            ready = [t for t in gang.tasks if t.status.counts_as_ready]
            running = Counter(map(gang.sub_group_of, (*ready, *placed)))
            growing = set(map(gang.sub_group_of, placed))
            num_complete = Counter(
                group[0]
                for group, number in running.items()
                if group is not None and number >= gang.sub_groups[group[0]].size
            )
            for group, number in running.items():
                if group is None or group not in growing:
                    continue
                policy = gang.sub_groups[group[0]]
                if number < policy.size:
                    name = "-".join((policy.name or str(group[0]), *group[1]))
                    tasks = count_noun(number, "task")
                    detail = f"{tasks} of subgroup {name} would run, but it needs {policy.size}"
                    yield Violation(self.name, where, detail)
            for r, policy in enumerate(gang.sub_groups):
                if num_complete[r] < policy.min_groups:
                    groups, least = count_noun(num_complete[r], "subgroup"), policy.min_groups
                    name = policy.name or str(r)
                    detail = f"{groups} of {name} would run, but minSubGroups is {least}"
                    yield Violation(self.name, where, detail)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. `solver.greedy.topology` decides which subgroups are placed."""
        return (
            _SubGroupCounts(problem) if any(_open_parts(s) for s in problem.shapes.shapes) else None
        )

    def distinguish_gangs(self, problem: Problem) -> Bool | None:
        """See `Rule`. Selects the gangs whose starting subgroups the model chooses."""
        apart = [bool(_open_parts(s)) and not s.is_rigid for s in problem.shapes.shapes]
        if not any(apart):
            return None
        gangs: Bool = np.append(apart, False)[problem.shape_of]
        return gangs

    def encode(self, form: Formulation) -> None:
        """Add constraints that started subgroups reach their minimums and are enough for the gang.

        The constraints are x[f] ≤ count[f] · s[p], Σ_{f ∈ p} x[f] ≥ need[p] · s[p], and Σ_p s[p] ≥
        groups · y.

        s[p] ∈ {0, 1} is 1 if subgroup p starts, and y is 1 if the gang starts. x[f] is the number
        of placed tasks of a set f of count[f] equal tasks. need[p] is the minimum of subgroup p,
        and `groups` is the number of subgroups that must start. The constraints are omitted for
        gangs that place all tasks or none.
        """
        gangs, model = form.gangs, form.model
        for h, number in enumerate(gangs.shape_of.tolist()):
            shape = form.problem.shapes.shapes[number]
            if not shape.parts or shape.is_rigid:
                continue
            first = int(gangs.start[h])
            starts = {p: int(model.add_variables(0, 1)[0]) for p in _open_parts(shape)}
            for p, start in starts.items():
                entries = [first + e for e, entry in enumerate(shape.entries) if entry.part == p]
                placed = form.placed_variable[entries]
                rows, ones = np.arange(len(entries)), np.ones(len(entries), np.int64)
                model.add_rows(
                    np.concatenate([rows, rows]),
                    np.concatenate([placed, np.full(len(entries), start)]),
                    np.concatenate([ones, -gangs.per_gang[entries]]),
                    upper=np.zeros(len(entries), np.int64),
                )
                least = np.append(ones, -shape.parts[p].need)
                model.add_rows(0, np.append(placed, start), least, lower=0)
            for rule, groups in shape.need_groups:
                mine = [start for p, start in starts.items() if shape.parts[p].rule == rule]
                factors = np.append(np.ones(len(mine), np.int64), -groups)
                model.add_rows(0, [*mine, int(form.start[h])], factors, lower=0)


@dataclass(eq=False)
class _SubGroupCounts(Greedy):
    """Checks that a gang starts enough subgroups, and each of them with its minimum of tasks."""

    _problem: Problem
    _count: Counter[tuple[int, int]] = field(default_factory=Counter, init=False)

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        shape = self._problem.shapes.shapes[int(self._problem.shape_of[gang])]
        self._count[gang, shape.entries[entry].part] += int(counts.sum())

    def holds(self, gang: int) -> bool:
        shape = self._problem.shapes.shapes[int(self._problem.shape_of[gang])]
        starts = _open_parts(shape)
        if any(0 < self._count[gang, p] < shape.parts[p].need for p in starts):
            return False
        begun = any(self._count[gang, p] for p in range(NO_PART, len(shape.parts)))
        started = Counter(shape.parts[p].rule for p in starts if self._count[gang, p])
        return not begun or all(started[rule] >= groups for rule, groups in shape.need_groups)


def _open_parts(shape: GangShape) -> list[int]:
    """Return the indices of the subgroups that run fewer tasks than their minimum."""
    return [p for p, part in enumerate(shape.parts) if part.need]


# --- next request of a gang -----------------------------------------------------------------------


def next_entries(outcome: Outcome, gang: int) -> list[tuple[int, str, int]]:
    """Return (task class, role, number) triples of the tasks that a gang must place together next.

    An unstarted gang must place its first tasks up to its minimum; a started gang must place a
    single task.
    """
    problem = outcome.problem
    number = int(problem.shape_of[gang])
    shape, start = problem.shapes.shapes[number], int(problem.shapes.start[number])
    done = [0] * len(shape.entries)  # number of tasks placed so far, per entry
    if outcome.num_placed[gang]:
        first = int(problem.task_start[gang])
        for i, entry in enumerate(shape.entries):
            done[i] = int(outcome.placed[first : first + entry.count].sum())
            first += entry.count
    left = max(shape.min_members, 1) if not any(done) else 1
    taken: dict[int, int] = {}
    for e, run in shape.sequence:
        passed = min(done[e], run)
        done[e] -= passed
        if more := min(left, run - passed):
            taken[e] = taken.get(e, 0) + more
            left -= more
    return [
        (int(problem.shapes.class_of[start + e]), shape.entries[e].role, count)
        for e, count in taken.items()
    ]


def first_task(problem: Problem, gang: int, entry: int) -> int:
    """Return the index of the first task of the set `entry` of equal, consecutive tasks."""
    number = problem.shapes.start[problem.shape_of[gang]] + entry
    return int(problem.task_start[gang] + problem.shapes.offset[number])


def next_requests(outcome: Outcome, gang: int) -> I64:
    """Return the total request (R,) of `next_entries`, as a shared read-only array."""
    known = outcome.derived(_new_requests)
    if gang not in known:
        problem = outcome.problem
        total = np.zeros(len(problem.resources), np.int64)
        for task_class, _, number in next_entries(outcome, gang):
            total += number * problem.classes.request[task_class]
        frozen(total)
        known[gang] = total
    return known[gang]


def _new_requests(_: Outcome) -> dict[int, I64]:
    return {}
