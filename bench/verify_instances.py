"""Regenerate the instance files in the instance folder, and verify the best known plans.

This module does not solve instances. A plan's objective values are computed from the plan alone.
The plan is checked with the plugins' `verify` extension points, which share no code with the
solvers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.cluster.decisions import Allocate, LevelStatus, Sense, relative_gap
from optsched.cluster.node_resources import ALL_CORES
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.formats.plan import read_plan, restore_plan
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.solve_result import checksum
from optsched.policy.load import load_policy
from optsched.session.lending import LENT
from optsched.session.session import judge_actions
from optsched.solver.preemption.sequential.model import ENDED, VICTIMS
from optsched.study.packing.packing_problem import wrong_with_bins
from optsched.study.packing.vbp import parse_vbp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.decisions import Action, LevelResult
    from optsched.cluster.node_resources import GpuShare
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy
    from optsched.study.instances.instance_catalogue import Best, Entry
    from optsched.study.instances.instance_families import Recipe
    from optsched.study.packing.packing_problem import VectorPacking


PACKING = "vector-packing"
"""Placeholder for the model name of vector bin packing instances, which have no model."""

LARGEST_GAP = 0.01
OVER_VICTIMS = frozenset({VICTIMS, ENDED})
"""Objective levels of the search for victims."""


def gap_of(level: LevelResult) -> float | None:
    """Return the relative gap between value and bound, or None if there is no bound."""
    return None if level.bound is None else relative_gap(level.value, level.bound)


def wrong_with_level(level: LevelResult) -> Iterator[str]:
    """Yield a message for each error in a level result, such as a gap above `LARGEST_GAP`."""
    value, bound = level.value, level.bound
    if bound is None:
        yield f"{level.name}: there is no bound"
        return
    if value > bound if level.sense is Sense.MAX else value < bound:
        yield f"{level.name}: {value} is beyond the bound {bound}"
    if (value == bound) is not (level.status is LevelStatus.OPTIMAL):
        yield f"{level.name}: {value} with bound {bound} is not {level.status}"
    # A bound on the number of victims holds for all plans, so it may be weak if several gangs
    # preempt.
    if level.name not in OVER_VICTIMS and (gap := relative_gap(value, bound)) > LARGEST_GAP:
        yield f"{level.name}: {value} with bound {bound} has a gap of {gap:.2%}; 1 % is allowed"


def check_gpu_shares(snapshot: Snapshot, actions: Sequence[Action]) -> Iterator[str]:
    """Yield a message for each wrong GPU share in a plan.

    The check covers pods that request vGPU memory and cores, but not MIG profiles.
    """
    tasks = {task.key: task for gang in snapshot.gangs for task in gang.tasks}
    held: defaultdict[tuple[str, str], list[GpuShare]] = defaultdict(list)
    for node in snapshot.nodes:
        for task in node.residents:
            for use in task.shared_gpus:
                held[node.name, use.key].append(use)
    for action in actions:
        if isinstance(action, Allocate):
            needs = tasks[action.task].shape.shared_gpus
            requested = sorted(need.memory for need in needs for _ in range(need.number))
            given = sorted(use.memory for use in action.shared_gpus)
            if requested != given:
                yield f"{action.task} requests {requested} of GPU memory and gets {given}"
            for use in action.shared_gpus:
                held[action.node, use.key].append(use)
    shared_gpus = {(node.name, gpu.key): gpu for node in snapshot.nodes for gpu in node.shared_gpus}
    for (name, key), uses in sorted(held.items()):
        gpu = shared_gpus.get((name, key))
        if gpu is None or not gpu.is_healthy:
            yield f"GPU {key} of node {name} is missing or unhealthy"
            continue
        memory, cores = sum(u.memory for u in uses), sum(u.cores for u in uses)
        if memory > gpu.memory or cores > ALL_CORES or len(uses) > gpu.sharers:
            has = f"{gpu.memory} of memory, {ALL_CORES} of cores and at most {gpu.sharers} pods"
            used = f"{memory}, {cores} and {len(uses)} are allocated"
            yield f"GPU {key} of node {name} has {has}; {used}"


def snapshot_of(recipe: Recipe) -> Snapshot:
    """Generate a recipe's instance file and parse it as a cluster snapshot."""
    (document,) = read_yaml(recipe.text())
    if not isinstance(document, Document):
        raise ValueError(f"{recipe.path}: {document.message}")
    return assemble(document.value["items"]).snapshot


def packing_of(recipe: Recipe) -> VectorPacking:
    """Generate a recipe's instance file and parse it as a packing instance."""
    return parse_vbp(recipe.text(), recipe.name)


@lru_cache(maxsize=16)
def model_of(name: str, folder: Path) -> Policy:
    """Load a built-in model by name, or a model file in the instance folder by path."""
    return load_policy(str(folder / name) if "/" in name else name, Path.read_text)


@dataclass(frozen=True)
class Proof:
    """The level values of a plan, and its violations."""

    values: tuple[tuple[str, int], ...]
    problems: tuple[str, ...] = ()


def verify_entry(entry: Entry, folder: Path) -> Iterator[str]:
    """Yield a message for each error in a catalogue entry.

    Regenerates the instance file, verifies each best known plan, and compares its level values with
    the catalogue.
    """
    text = entry.recipe.text()
    if checksum(text) != entry.sha256 or len(text.encode()) != entry.size:
        yield f"{entry.title}: the instance generated from the seed has a different checksum"
    file = folder / entry.recipe.path
    if entry.is_stored and not file.is_file():
        yield f"{entry.title}: {file} does not exist"
    elif file.is_file() and file.read_bytes() != text.encode():
        yield f"{entry.title}: {file} differs from the instance generated from the seed"
    if not entry.best:
        yield f"{entry.title}: no plan is known"
    for best in entry.best:
        for problem in _verify_best(entry, best, folder):
            yield f"{entry.title}, {best.model}: {problem}"


def _verify_best(entry: Entry, best: Best, folder: Path) -> Iterator[str]:
    """Yield a message for each error in a best known plan."""
    try:
        source = (folder / entry.recipe.family / best.plan).read_text(encoding="utf-8")
    except OSError as e:
        yield f"{best.plan} cannot be read: {e.strerror}"
        return
    prove = prove_bins if best.model == PACKING else prove_plan
    proof = prove(entry, best.model, source, folder)
    yield from proof.problems
    recorded = tuple((level.name, level.value) for level in best.levels)
    if not proof.problems and _without_empty_loans(proof.values) != _without_empty_loans(recorded):
        yield f"the level values of the plan are {proof.values}, not {recorded}"
    for level in best.levels:
        yield from wrong_with_level(level)


def _without_empty_loans(values: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the level values without loan levels of value zero, which a plan may omit.

    A loan level counts what is placed above a queue's fair share.
    """
    return [(name, value) for name, value in values if value or not name.startswith(LENT)]


def prove_plan(entry: Entry, model: str, source: str, folder: Path) -> Proof:
    """Verify a plan, given the content of its file; return its level values and violations."""
    document, errors = read_plan(source)
    if document is None:
        return Proof((), tuple(map(str, errors)))
    snapshot = snapshot_of(entry.recipe)
    plan, errors = restore_plan(document, snapshot)
    if errors:
        return Proof((), tuple(map(str, errors)))
    judged = judge_actions(snapshot, model_of(model, folder), plan.actions)
    problems = [str(violation) for violation in judged.violations]
    reasons = judged.explain_pending() if entry.pending else {}
    for key, code in entry.pending.items():
        reason = reasons.get(key)
        if reason is None:
            problems.append(f"{key} starts, but should wait; the expected reason is {code}")
        elif reason.code.value != code:
            problems.append(f"{key} waits for {reason}; the expected reason is {code}")
    problems += check_gpu_shares(snapshot, plan.actions)
    return Proof(tuple((level.name, level.value) for level in judged.levels), tuple(problems))


def prove_bins(entry: Entry, _: str, source: str, __: Path) -> Proof:
    """Verify a packing, given the content of its file; return its bin count and violations."""
    try:
        listed: Any = json.loads(source)
        bins = [tuple((int(kind), int(number)) for kind, number in each) for each in listed]
    except (ValueError, TypeError) as e:
        return Proof((), (f"is not a list of bins of [item type, number] pairs: {e}",))
    problems = wrong_with_bins(packing_of(entry.recipe), bins)
    return Proof((("bins", len(bins)),), tuple(problems))
