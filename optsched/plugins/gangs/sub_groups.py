"""Smaller groups inside gangs start whole, and enough of them: subGroupPolicy.

Mathematics: models/formulation/sub_groups.md. Volcano: `pkg/scheduler/plugins/gang`, `SubJobReady`
and `CheckSubJobReady`. Where groups may stand is the business of `network_topology`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.topology import sub_group_of
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.plugins.faces import Face
from optsched.plugins.wording import count_noun
from optsched.problem.subgroups import NO_PART

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task
    from optsched.plugins.ledger import Ledger
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.shapes import GangShape


class SubGroups(Rule):
    """Fewer tasks of a smaller group than its size, or fewer groups than asked, never start.

    The greedy pipeline places groups whole, see `solver.greedy.topology`.
    """

    name = "sub-groups"
    hard_face = Face.SUB_JOB_READY

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for key, placed in world.placed_of.items():
            gang = world.snapshot.gang_by_key[key]
            if gang.sub_groups:
                yield from _broken(self.name, gang, placed)

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. Which groups are placed is decided by `solver.greedy.topology`."""
        return _Live(problem) if any(_open_parts(s) for s in problem.shapes.shapes) else None

    # --- encode ----------------------------------------------------------------------------------

    def distinguish_gangs(self, problem: Problem) -> Bool | None:
        """See `Rule`: gangs whose groups are started one by one."""
        apart = [bool(_open_parts(s)) and not s.is_rigid for s in problem.shapes.shapes]
        if not any(apart):
            return None
        gangs: Bool = np.append(apart, False)[problem.shape_of]
        return gangs

    def encode(self, form: Formulation) -> None:
        """x[f] ≤ count[f]·s[p] and Σ_{f ∈ p} x[f] ≥ need[p]·s[p]; Σ_p s[p] ≥ groups·y.

        s[p] ∈ {0, 1} is whether group p starts. Gangs that start whole need no row.
        """
        for h, number in enumerate(form.gangs.shape_of.tolist()):
            shape = form.problem.shapes.shapes[number]
            if shape.parts and not shape.is_rigid:
                _encode_parts(form, h, shape)


class _Live(Greedy):
    """Whether groups that got a task got all that they need, and enough groups did."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._count: Counter[tuple[int, int]] = Counter()

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


def _broken(rule: str, gang: Gang, placed: Sequence[Task]) -> Iterator[Violation]:
    ready = [t for t in gang.tasks if t.status.counts_as_ready]
    there = Counter(sub_group_of(gang.sub_groups, t.labels) for t in (*ready, *placed))
    comes = {sub_group_of(gang.sub_groups, t.labels) for t in placed}
    for group, number in there.items():
        if group is None or group not in comes:
            continue
        least = gang.sub_groups[group[0]].size
        if number < least:
            name = "-".join((gang.sub_groups[group[0]].name or str(group[0]), *group[1]))
            detail = f"{count_noun(number, 'task')} of group {name} would run, it needs {least}"
            yield Violation(rule, f"gang {gang.key}", detail)
    for r, policy in enumerate(gang.sub_groups):
        whole = sum(g is not None and g[0] == r and n >= policy.size for g, n in there.items())
        if whole < policy.min_groups:
            name = policy.name or str(r)
            detail = (
                f"{count_noun(whole, 'group')} of {name} would run, minSubGroups is "
                f"{policy.min_groups}"
            )
            yield Violation(rule, f"gang {gang.key}", detail)


def _open_parts(shape: GangShape) -> list[int]:
    """Groups that have to start whole still."""
    return [p for p, part in enumerate(shape.parts) if part.need]


def _encode_parts(form: Formulation, h: int, shape: GangShape) -> None:
    gangs, model = form.gangs, form.model
    first = int(gangs.start[h])
    starts = {p: int(model.add_variables(0, 1)[0]) for p in _open_parts(shape)}
    for p, start in starts.items():
        entries = [first + e for e, entry in enumerate(shape.entries) if entry.part == p]
        placed = form.placed_variable[entries]
        rows = np.arange(len(entries))
        model.add_rows(
            np.concatenate([rows, rows]),
            np.concatenate([placed, np.full(len(entries), start)]),
            np.concatenate([np.ones(len(entries), np.int64), -gangs.per_gang[entries]]),
            upper=np.zeros(len(entries), np.int64),
        )
        least = np.append(np.ones(len(entries), np.int64), -shape.parts[p].need)
        model.add_rows(0, np.append(placed, start), least, lower=0)
    for rule, groups in shape.need_groups:
        mine = [start for p, start in starts.items() if shape.parts[p].rule == rule]
        factors = np.append(np.ones(len(mine), np.int64), -groups)
        model.add_rows(0, [*mine, int(form.start[h])], factors, lower=0)
