"""Generate, verify and solve the instances of the folder `instances/`.

Run `python -m bench.instances COMMAND`. `make` writes the catalogue and the files of all stored
instances. With `--all`, it also writes the instances that are generated only when they are needed.
`verify` generates the files again and verifies the best known plans. `solve` solves the instances
on two cores within `--seconds` 60, and `--update` keeps better plans and bounds. `table` writes the
table of the page. `--only TEXT` limits `verify` and `solve` to instances whose title contains the
text.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bench.solve_instances import Solving, judged, merge_best, solve_recipe
from bench.verify_instances import PACKING, gap_of, verify_entry
from optsched import __version__
from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.plan import encode_level
from optsched.formats.solve_result import checksum
from optsched.kube.runtime.timing import SystemClock
from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.instances.gang_instances import CASES
from optsched.study.instances.instance_catalogue import FILE, KIND, Entry, read_catalogue
from optsched.study.instances.instance_families import LICENCE, Recipe
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parents[1] / "instances"
CATALOGUE = FOLDER / FILE


BEGIN = "<!-- table -->"
END = "<!-- end of table -->"


def with_table(page: str, entries: Iterable[Entry]) -> str:
    """Insert a table of instances into a page, between the markers `BEGIN` and `END`.

    Raises ValueError if the page lacks one of the markers.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks a marker of the table: {BEGIN} or {END}")
    lines = ["| instance | model | level | value | bound | gap |", "|---|---|---|---:|---:|---:|"]
    for entry in entries:
        named = f"{entry.title}{'' if entry.is_stored else ' *'}"
        for best in entry.best:
            for i, level in enumerate(best.levels):
                name, gap = f"{level.name} ({level.sense.value}, {level.unit})", gap_of(level)
                bound = "unknown" if level.bound is None else str(level.bound)
                far = "unknown" if gap is None else f"{gap:.2%}" if gap else "0"
                shown = (named, best.model) if i == 0 else ("", "")
                lines.append(f"| {' | '.join([*shown, name, str(level.value), bound, far])} |")
    table = "\n".join(lines)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def catalogue_text(entries: Iterable[Entry]) -> str:
    """Format a catalogue file, in which each objective level is one line."""
    lines = [
        "# Instances with the best known plan of each; see docs/instances.md.",
        "# Written by `make instances` and `make instances-update`. Apache-2.0.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "instances:",
    ]
    for entry in entries:
        recipe = entry.recipe
        lines += [
            f"- family: {recipe.family}",
            f"  name: {write_json(recipe.name)}",
            f"  seed: {recipe.seed}",
            f"  parameters: {write_json(dict(recipe.parameters))}",
            f"  licence: {LICENCE}",
            f"  sha256: {write_json(entry.sha256)}",
            f"  bytes: {entry.size}",
            f"  stored: {write_json(entry.is_stored)}",
        ]
        if entry.pending:
            lines.append(f"  pending: {write_json(dict(entry.pending))}")
        if entry.best:
            lines.append("  best:")
        for best in entry.best:
            lines += [
                f"  - model: {best.model}",
                f"    plan: {best.plan}",
                f"    engine: {write_json(best.engine)}",
                f"    found: {write_json(dict(best.found))}",
                "    levels:",
                *(f"    - {write_json(encode_level(level))}" for level in best.levels),
            ]
    return "\n".join([*lines, ""])


# --- shipped instances --------------------------------------------------------------------------


_WEIGHTS, _VOLCANO, _FRAGMENTS = "max-throughput", "volcano-default", "min-fragmentation"
_CARDS = "gpus-shared/model.yaml"
_QUEUES, _TOPOLOGY = "capacity-hierarchical", "topology-first"

MOST_BYTES = 60_000
"""Maximum size in bytes of stored instance files; larger ones are generated when needed."""


@dataclass(frozen=True)
class Shipped:
    """A shipped instance, and the models under which it is solved."""

    recipe: Recipe
    models: tuple[str, ...]


def _instances_of_family(
    family: str, models: tuple[str, ...], **sizes: dict[str, int | str]
) -> tuple[Shipped, ...]:
    named = ((name.replace("_", "-"), parameters) for name, parameters in sizes.items())
    return tuple(Shipped(Recipe(family, name, 1, given), models) for name, given in named)


SHIPPED = (
    *_instances_of_family(
        "gangs-homogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"nodes": 4},
        small={"nodes": 16},
        medium={"nodes": 48},
        large={"nodes": 125},
    ),
    *_instances_of_family(
        "gangs-fragmented",
        (_WEIGHTS, _VOLCANO, _FRAGMENTS),
        tiny={"nodes": 6},
        small={"nodes": 16},
    ),
    *_instances_of_family(
        "gangs-fragmented", (_WEIGHTS, _VOLCANO), medium={"nodes": 48}, large={"nodes": 125}
    ),
    *_instances_of_family(
        "queues-hierarchical",
        (_QUEUES,),
        tiny={"nodes": 4, "departments": 2, "teams": 2},
        small={"nodes": 12, "departments": 3, "teams": 2},
        medium={"nodes": 32, "departments": 3, "teams": 3},
        large={"nodes": 125, "departments": 4, "teams": 4},
    ),
    *_instances_of_family(
        "topology",
        (_TOPOLOGY,),
        tiny={"spines": 2, "racks": 2, "nodes": 2},
        small={"spines": 2, "racks": 2, "nodes": 4},
        medium={"spines": 2, "racks": 4, "nodes": 4},
        large={"spines": 4, "racks": 4, "nodes": 8},
    ),
    *_instances_of_family(
        "victims",
        (_VOLCANO,),
        preempt_tiny={"nodes": 3, "waiting": 2},
        preempt_small={"nodes": 8, "waiting": 6},
        preempt_medium={"nodes": 32, "waiting": 20},
        preempt_large={"nodes": 125, "waiting": 30},
    ),
    *_instances_of_family(
        "victims",
        (_QUEUES,),
        reclaim_tiny={"nodes": 4, "waiting": 3, "queues": 2},
        reclaim_small={"nodes": 9, "waiting": 6, "queues": 3},
        reclaim_medium={"nodes": 40, "waiting": 20, "queues": 3},
    ),
    *_instances_of_family(
        "heterogeneous",
        (_WEIGHTS, _VOLCANO),
        tiny={"gpu_nodes": 2, "cpu_nodes": 2, "gangs": 5},
        small={"gpu_nodes": 6, "cpu_nodes": 3, "gangs": 12},
        medium={"gpu_nodes": 24, "cpu_nodes": 12, "gangs": 60},
    ),
    *_instances_of_family(
        "gpus-shared",
        (_CARDS,),
        tiny={"nodes": 2, "cards": 2},
        small={"nodes": 6, "cards": 4},
        medium={"nodes": 16, "cards": 8},
    ),
    *_instances_of_family(
        "vector-packing",
        (PACKING,),
        tiny={"items": 20, "kinds": 6},
        small={"items": 60, "kinds": 12},
        medium={"items": 200, "kinds": 30, "dimensions": 3},
    ),
    *_instances_of_family(
        "vector-packing-cut",
        (PACKING,),
        tiny={"bins": 6, "pieces": 3},
        small={"bins": 20, "pieces": 3},
        medium={"bins": 20, "pieces": 3, "dimensions": 3},
    ),
    *(
        Shipped(Recipe("infeasible", case, 1, {"case": case, "nodes": 8}), (_TOPOLOGY,))
        for case in CASES
    ),
    *_instances_of_family("infeasible", (_TOPOLOGY,), pairs_medium={"case": "pairs", "nodes": 64}),
)


def entry_of(shipped: Shipped, known: Entry | None) -> Entry:
    """Return the catalogue entry for an instance, with its known plans if it is unchanged."""
    made = shipped.recipe.text()
    entry = Entry(
        shipped.recipe,
        sha256=checksum(made),
        size=len(made.encode()),
        is_stored=len(made.encode()) <= MOST_BYTES,
        pending=shipped.recipe.pending,
    )
    if known is None or known.sha256 != entry.sha256:
        return entry
    return replace(entry, best=tuple(b for b in known.best if b.model in shipped.models))


def entries_of(shipped: Iterable[Shipped], known: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the catalogue entries for the shipped instances, with the plans from `known`."""
    before = {entry.title: entry for entry in known}
    found = ((s, f"{s.recipe.family}/{s.recipe.name}") for s in shipped)
    return tuple(entry_of(each, before.get(title)) for each, title in found)


# --- commands ------------------------------------------------------------------------------------


def _entries():
    return read_catalogue(CATALOGUE) if CATALOGUE.exists() else ()


def _write(entries):
    CATALOGUE.write_text(catalogue_text(entries), encoding="utf-8")
    page = FOLDER / "README.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), entries), encoding="utf-8")


def make(options):
    entries = entries_of(SHIPPED, _entries())
    for entry in entries:
        file = FOLDER / entry.recipe.path
        file.parent.mkdir(exist_ok=True)
        if entry.is_stored or options.all:
            file.write_text(entry.recipe.text(), encoding="utf-8", newline="\n")
            print(f"{entry.title}: {entry.size} bytes")
    _write(entries)
    return 0


def verify(options):
    wrong = 0
    for entry in _entries():
        if options.only not in entry.title:
            continue
        problems = list(verify_entry(entry, FOLDER))
        wrong += len(problems)
        models = ", ".join(best.model for best in entry.best)
        print("\n".join(problems) or f"{entry.title}: proved under {models}", flush=True)
    return 1 if wrong else 0


def solve(options):
    failed = 0
    models_of = {f"{s.recipe.family}/{s.recipe.name}": s.models for s in SHIPPED}
    worker = WorkerProcess()
    try:
        worker.wait_until_ready()
        solving = Solving(worker, options.seconds, SystemClock(), FOLDER)
        for entry in _entries():
            known = entry
            for model in models_of[entry.title] if options.only in entry.title else ():
                num_failed, known = _solve(known, model, solving, options)
                failed += num_failed
    finally:
        worker.close()
    print(f"{failed} with remarks" if failed else "as good as the best known plans")
    return 1 if failed and not options.update else 0


def _solve(entry, model, solving, options):
    before = time.monotonic()
    found = solve_recipe(entry.recipe, model, solving)
    spent = time.monotonic() - before
    remarks = list(judged(entry, model, found))
    gap = max((gap_of(level) or 0.0 for level in found.levels), default=0.0)
    print(f"{entry.title}, {model}: gap {gap:.2%} in {spent:.1f} s ({found.engine})", flush=True)
    for remark in remarks:
        print(f"  {remark}", flush=True)
    if options.update:
        entry = _updated(entry, model, found, solving)
    return bool(remarks), entry


def _updated(entry, model, found, solving):
    known = {best.model: best for best in entry.best}
    how = {
        "optsched": __version__,
        "ortools": version("ortools"),
        "limits": f"{solving.seconds:g} s, 2 workers",
    }
    best = merge_best(known.get(model), model, entry.recipe.name, found, how)
    if best is not known.get(model):
        if known.get(model) is None or best.levels == found.levels:
            file = FOLDER / entry.recipe.family / best.plan
            file.write_text(found.text, encoding="utf-8", newline="\n")
        known[model] = best
        entry = replace(entry, best=tuple(known[m] for m in sorted(known)))
        _write([entry if e.title == entry.title else e for e in _entries()])
    return entry


def table(_):
    _write(_entries())
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "verify", "solve", "table"])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    whats = {"make": make, "verify": verify, "solve": solve, "table": table}
    sys.exit(whats[options.what](options))


if __name__ == "__main__":
    main()
