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
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from optsched import __version__
from optsched.kube.runtime.timing import SystemClock
from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.instances.instance_catalogue import (
    FILE,
    SHIPPED,
    catalogue_text,
    gap_of,
    read_catalogue,
    with_table,
)
from optsched.study.instances.instance_folder import entries_of, verify_entry
from optsched.study.instances.solve_again import Solving, judged, merge_best, solve_recipe

FOLDER = Path(__file__).parents[1] / "instances"
CATALOGUE = FOLDER / FILE


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
