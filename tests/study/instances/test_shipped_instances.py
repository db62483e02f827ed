"""Tests of the shipped instances and their recorded results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.instances import MOST_BYTES, SHIPPED, entries_of, with_table
from bench.solve_instances import (
    Found,
    Solving,
    compare,
    judged,
    merge_best,
    solve_recipe,
)
from bench.verify_instances import PACKING, prove_plan, snapshot_of, verify_entry
from optsched.cluster.decisions import LevelStatus
from optsched.formats.snapshots.instance_files import read_instance
from optsched.kube.runtime.timing import SystemClock
from optsched.solver.cpsat.process import WorkerProcess
from optsched.study.instances.instance_catalogue import FILE, read_catalogue
from tests.support.effort import nightly_except
from tests.support.research import RESEARCH

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "instances"
ENTRIES = read_catalogue(FOLDER / FILE)
BY_TITLE = {entry.title: entry for entry in ENTRIES}
MODELS = {f"{s.recipe.family}/{s.recipe.name}": set(s.models) for s in SHIPPED}
TINY = [e for e in ENTRIES if e.size < 14_000 and e.recipe.family != "vector-packing-cut"]
TITLES = [e.title for e in ENTRIES]


def test_the_catalogue_is_of_what_is_shipped():
    assert entries_of(SHIPPED, ENTRIES) == ENTRIES
    assert {e.title: {b.model for b in e.best} for e in ENTRIES} == MODELS


@pytest.mark.parametrize("title", TITLES)
def test_best_known_plans_are_proved_again(title):
    assert not list(verify_entry(BY_TITLE[title], FOLDER))


def test_what_is_not_stored_is_not_committed():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    there = {line.removeprefix("/instances/") for line in ignored if "/instances/" in line}
    assert there == {e.recipe.path for e in ENTRIES if not e.is_stored}
    assert all(e.is_stored is (e.size <= MOST_BYTES) for e in ENTRIES)


def test_the_page_has_the_table_of_the_catalogue():
    page = (FOLDER / "README.md").read_text()
    assert with_table(page, ENTRIES) == page
    for family in {e.recipe.family for e in ENTRIES}:
        assert f"| `{family}` |" in page


def test_files_are_read_by_the_command_as_they_are():
    entry = next(e for e in TINY if e.recipe.family == "topology")
    read = read_instance(FOLDER / entry.recipe.path)
    assert not read.problems
    assert not read.notices
    assert read.snapshot == snapshot_of(entry.recipe)


def test_gangs_that_can_not_start_are_proved_not_to():
    for entry in ENTRIES:
        if entry.recipe.family == "infeasible":
            (level,) = [n for n in entry.best[0].levels if n.name == "admission, priority 4"]
            assert (level.value, level.bound) == (0, 0), entry.title


@pytest.fixture(scope="module")
def worker():
    found = WorkerProcess()
    yield found
    found.close()


@pytest.mark.parametrize("title", [e.title for e in TINY])
def test_small_ones_are_solved_to_what_is_known(title, worker):
    entry = BY_TITLE[title]
    for best in entry.best:
        solving = Solving(worker, 2.0, None, FOLDER)
        if best.model == PACKING:
            solving = replace(solving, seconds=20.0)
        found = solve_recipe(entry.recipe, best.model, solving)
        assert not list(judged(entry, best.model, found))


SOLVED = TITLES if RESEARCH == "full" else TITLES[::5]
LONG = ("heterogeneous/medium", "topology/large")
"""Their tiny variants are among `TINY`."""


@pytest.mark.research
@pytest.mark.parametrize("title", nightly_except(SOLVED, [t for t in SOLVED if t not in LONG]))
def test_all_are_solved_to_what_is_known_within_a_minute(title, worker):
    entry = BY_TITLE[title]
    for best in entry.best:
        found = solve_recipe(entry.recipe, best.model, Solving(worker, 60.0, SystemClock(), FOLDER))
        assert not list(judged(entry, best.model, found))


# --- what is not as it should be -----------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    """Return a catalogue entry whose files were copied to a separate folder."""
    entry = BY_TITLE["infeasible/ceiling"]
    for name in (entry.recipe.path, f"infeasible/{entry.best[0].plan}"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((FOLDER / name).read_bytes())
    return entry, tmp_path


def test_a_file_that_was_changed_is_told(copied):
    entry, folder = copied
    with (folder / entry.recipe.path).open("a") as file:
        file.write("\n")
    (told,) = verify_entry(entry, folder)
    assert "differs from the instance generated" in told


def test_another_checksum_is_told(copied):
    entry, folder = copied
    (told,) = verify_entry(replace(entry, sha256="0" * 64), folder)
    assert "a different checksum" in told


def test_files_that_are_missing_are_told(copied):
    entry, folder = copied
    (folder / entry.recipe.path).unlink()
    (folder / "infeasible" / entry.best[0].plan).unlink()
    told = list(verify_entry(entry, folder))
    assert len(told) == 2
    assert all("does not exist" in t or "cannot be read" in t for t in told)


def test_a_plan_that_breaks_a_rule_is_told(copied):
    entry, folder = copied
    plan = folder / "infeasible" / entry.best[0].plan
    text = plan.read_text()
    nodes = re.findall(r'"jobs/g\d+-0":"(n\d+)"', text)
    plan.write_text(text.replace('"binds":{', f'"binds":{{"jobs/asked-0":"{nodes[0]}",', 1))
    told = list(verify_entry(entry, folder))
    assert any("gang" in t for t in told)


def test_a_value_that_the_plan_has_not_is_told(copied):
    entry, folder = copied
    level = entry.best[0].levels[-1]
    wrong = replace(level, value=level.value - 1, status=LevelStatus.FEASIBLE)
    best = replace(entry.best[0], levels=(*entry.best[0].levels[:-1], wrong))
    told = list(verify_entry(replace(entry, best=(best,)), folder))
    assert len(told) == 1
    assert "the level values of the plan are" in told[0]


def test_another_reason_is_told(copied):
    entry, folder = copied
    told = list(verify_entry(replace(entry, pending={"jobs/asked": "NoNodes"}), folder))
    assert len(told) == 1
    assert "the expected reason is NoNodes" in told[0]


def test_a_gpu_that_is_given_away_twice_is_told(tmp_path):
    entry = BY_TITLE["gpus-shared/tiny"]
    (tmp_path / "gpus-shared").mkdir()
    for name in (entry.recipe.path, f"gpus-shared/{entry.best[0].plan}", "gpus-shared/model.yaml"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    assert not list(verify_entry(entry, tmp_path))
    plan = tmp_path / "gpus-shared" / entry.best[0].plan
    text = plan.read_text()
    plan.write_text(re.sub(r"n00\d-gpu-\d", "n000-gpu-0", text))
    told = list(verify_entry(entry, tmp_path))
    assert any("GPU n000-gpu-0 of node n000 has 16384 of memory" in t for t in told)
    assert any("GPU n000-gpu-0 of node n001 is missing" in t for t in told)


def test_a_pod_without_its_gpu_is_told(tmp_path):
    entry = BY_TITLE["gpus-shared/tiny"]
    source = (FOLDER / "gpus-shared" / entry.best[0].plan).read_text()
    plan = json.loads(source)
    del plan["cards"]["jobs/g000-0"]
    told = prove_plan(entry, entry.best[0].model, json.dumps(plan), FOLDER).problems
    assert told == ("jobs/g000-0 requests [4096] of GPU memory and gets []",)


def fresh(best, **change):
    last = replace(best.levels[-1], **change)
    return Found((*best.levels[:-1], last), "cp-sat", "")


def test_what_is_better_is_told_and_kept():
    entry = BY_TITLE["gangs-fragmented/tiny"]
    best = next(b for b in entry.best if b.model == "volcano-default")
    value = best.levels[-1].value
    better = fresh(best, value=value + 1, bound=value + 1)
    assert compare(best.levels, better.levels) == 1
    told = list(judged(entry, best.model, better))
    assert any("better than the best known plan" in t for t in told)
    assert any("beyond the known bound" in t for t in told)
    new = merge_best(best, best.model, "tiny", better, {})
    assert new.levels == better.levels
    worse = fresh(best, value=value - 1, status=LevelStatus.FEASIBLE)
    assert merge_best(best, best.model, "tiny", worse, {}) is best


def test_fewer_victims_are_better_and_not_beyond_what_was_proved_gang_by_gang():
    entry = BY_TITLE["victims/preempt-large"]
    (best,) = entry.best
    at = [level.name for level in best.levels].index("victims")
    known = best.levels[at]
    fewer = replace(known, value=known.value - 1, bound=known.value - 1)
    found = Found((*best.levels[:at], fewer, *best.levels[at + 1 :]), "greedy", "")
    (told,) = judged(entry, best.model, found)
    assert told.startswith("better than the best known plan")


def test_a_better_bound_is_kept_with_the_plan_that_is_known():
    best = BY_TITLE["gangs-fragmented/tiny"].best[0]
    loose = replace(best, levels=fresh(best, bound=10**9, status=LevelStatus.FEASIBLE).levels)
    new = merge_best(loose, best.model, "tiny", fresh(best), {})
    assert (new.levels, new.plan) == (best.levels, best.plan)


def test_what_is_worse_than_one_percent_is_told():
    entry = BY_TITLE["gangs-fragmented/tiny"]
    best = next(b for b in entry.best if b.model == "volcano-default")
    found = fresh(best, bound=best.levels[-1].value * 2, status=LevelStatus.FEASIBLE)
    assert any("1 % is allowed" in t for t in judged(entry, best.model, found))


def test_a_model_of_which_nothing_is_known_is_told():
    entry = BY_TITLE["gangs-fragmented/tiny"]
    assert list(judged(entry, "other", Found((), "", ""))) == ["no plan is known yet"]
