"""Solve instances again and compare the solutions with the best known plans."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePath
from typing import TYPE_CHECKING

from bench.verify_instances import (
    OVER_VICTIMS,
    PACKING,
    gap_of,
    model_of,
    packing_of,
    snapshot_of,
    wrong_with_level,
)
from optsched.cluster.decisions import LevelResult, LevelStatus, Sense
from optsched.formats.plan import encode_plan, plan_document
from optsched.session.lending import LENT
from optsched.session.session import SessionContext, run_session
from optsched.session.solve_settings import ENGINES
from optsched.solver.cpsat.level_model import Limits
from optsched.study.instances.instance_catalogue import Best
from optsched.study.packing.solve_packing import PackingWork, packings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from optsched.session.ports import Clock
    from optsched.solver.cpsat.process import WorkerProcess
    from optsched.study.instances.instance_catalogue import Entry
    from optsched.study.instances.instance_families import Recipe


@dataclass(frozen=True)
class Solving:
    """How instances are solved: the solver process, time limits and the instance folder."""

    worker: WorkerProcess
    seconds: float  # Wall-clock limit, or deterministic limit per level if `clock` is None.
    # Clock for the wall-clock limit. If `clock` is None, the solver uses one worker, and its
    # solutions are reproducible.
    clock: Clock | None
    folder: Path  # Folder of all instances and their models.


@dataclass(frozen=True)
class Found:
    """A new solution: its level results, the engine that found it, and the plan file's content."""

    levels: tuple[LevelResult, ...]
    engine: str
    text: str


def solve_recipe(recipe: Recipe, model: str, solving: Solving) -> Found:
    """Solve an instance under a model."""
    if model == PACKING:
        work = PackingWork(packing_of(recipe), solving.seconds)
        *_, last = packings(solving.worker, work)
        number = len(last.bins)
        status = LevelStatus.OPTIMAL if number == last.bound else LevelStatus.FEASIBLE
        level = LevelResult("bins", "bins", Sense.MIN, number, last.bound, status)
        # Write one bin per line, as a list of [item type, number] pairs.
        lines = (json.dumps([list(pair) for pair in each]) for each in last.bins)
        return Found((level,), last.found_by, "[\n" + ",\n".join(lines) + "\n]\n")
    if solving.clock is None:
        limits = Limits(None, solving.seconds, num_workers=1, num_engines=ENGINES)
    else:
        limits = Limits(int(solving.seconds * 1000), solving.seconds, num_engines=ENGINES)
    context = SessionContext(solving.clock, solving.worker, limits=limits)
    plan = run_session(snapshot_of(recipe), model_of(model, solving.folder), context).plan
    plan = replace(plan, certificate=replace(plan.certificate, seconds=0.0))
    levels = tuple(
        r for r in plan.certificate.levels if not (r.name.startswith(LENT) and r.value == 0)
    )
    # Omit the reasons why gangs are pending, because they can be recomputed.
    document = replace(plan_document(plan), pending={}, pending_pods={})
    text = json.dumps(encode_plan(document), separators=(",", ":"), sort_keys=True)
    return Found(levels, plan.certificate.engine, f"{text}\n")


# --- comparison with known plans ------------------------------------------------------------------


def compare(known: Sequence[LevelResult], new: Sequence[LevelResult]) -> int:
    """Return 1 if the new level values are lexicographically better, -1 if worse, 0 if equal."""
    for old, fresh in zip(known, new, strict=False):
        if old.value != fresh.value:
            return 1 if (fresh.value > old.value) is (old.sense is Sense.MAX) else -1
    return 0


def judged(entry: Entry, model: str, found: Found) -> Iterator[str]:
    """Yield a message if a new solution is invalid, or better than the best known plan."""
    for level in found.levels:
        yield from wrong_with_level(level)
    known = next((b for b in entry.best if b.model == model), None)
    if known is None:
        yield "no plan is known yet"
        return
    names = [level.name for level in known.levels]
    if names != [level.name for level in found.levels]:
        yield f"the levels differ from those of the best known plan: {', '.join(names)}"
    order = compare(known.levels, found.levels)
    if order > 0:
        yield "better than the best known plan: keep it with `make instances-update`"
    if order == 0 and _tighter(known.levels, found.levels) != known.levels:
        yield "a bound is better than the best known bound: keep it with `make instances-update`"
    for old, fresh in zip(known.levels, found.levels, strict=False):
        # A bound on a victim level depends on earlier decisions, because each preempting gang's
        # victims are selected in a separate solve.
        bound = None if old.name in OVER_VICTIMS else old.bound
        if bound is not None and (
            fresh.value > bound if fresh.sense is Sense.MAX else fresh.value < bound
        ):
            yield f"{fresh.name}: {fresh.value} is beyond the known bound {old.bound}"
        if old.value != fresh.value:
            break


def merge_best(
    known: Best | None, model: str, name: str, found: Found, how: Mapping[str, str]
) -> Best:
    """Return the better of the known and the new solution; merge the bounds of equal solutions."""
    order = 1 if known is None else compare(known.levels, found.levels)
    if known is not None and order < 0:
        return known
    if known is not None and order == 0:
        levels = _tighter(known.levels, found.levels)
        return known if levels == known.levels else replace(known, levels=levels)
    plan = f"{name}.{PurePath(model).stem}.plan.json"
    return Best(model, plan, found.engine, how, found.levels)


def _tighter(known: Sequence[LevelResult], new: Sequence[LevelResult]) -> tuple[LevelResult, ...]:
    """Return for each level the result with the tighter bound; the level values must be equal."""
    found = []
    for pair in zip(known, new, strict=True):
        gaps = [inf if (gap := gap_of(level)) is None else gap for level in pair]
        found.append(pair[gaps.index(min(gaps))])
    return tuple(found)
