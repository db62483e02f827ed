"""Tests of the instance catalogue as a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.instances import catalogue_text
from bench.verify_instances import wrong_with_level
from optsched.cluster.decisions import LevelResult, LevelStatus, Sense
from optsched.formats.files.diagnostics import InstanceError
from optsched.study.instances.instance_catalogue import Best, Entry, read_catalogue
from optsched.study.instances.instance_families import Recipe

LEVEL = LevelResult("admission", "gangs", Sense.MAX, 4, 4, LevelStatus.OPTIMAL)
BEST = Best("max-throughput", "x.plan.json", "greedy", {"limits": "none"}, (LEVEL,))
RECIPE = Recipe("gangs-homogeneous", "x", 1, {"nodes": 3})
ENTRY = Entry(RECIPE, "0" * 64, 10, True, {"jobs/a": "Impossible"}, (BEST,))


def written(tmp_path, *entries):
    path = tmp_path / "catalogue.yaml"
    path.write_text(catalogue_text(entries))
    return path


def test_what_is_written_is_read(tmp_path):
    other = replace(ENTRY, recipe=replace(RECIPE, name="y"), best=(), pending={})
    assert read_catalogue(written(tmp_path, ENTRY, other)) == (ENTRY, other)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed: 1", "seed: one", r"8: instances\[0\].seed: is not a whole number"),
        ("  seed: 1\n", "", r"6: instances\[0\].seed: is missing"),
        ("family: gangs-", "family: gang-", r"6: instances\[0\].family: gang-homogeneous is not"),
        ('"nodes"', '"node"', r"9: instances\[0\].parameters.node: is not one of nodes"),
        ("licence: Apache-2.0", "licence: none", r"10: instances\[0\].licence: is not one of Ap"),
        (
            "stored:",
            "kept: 1\n  stored:",
            r"13: instances\[0\].kept: is the value of an unknown field; known fields are ",
        ),
        ('"sense": "max"', '"sense": "best"', r"21: instances\[0\].best\[0\].levels\[0\].sense"),
        ("kind: Inst", "kind: Cat", "is optsched.io/v1alpha1 CatanceCatalogue: write"),
        ("instances:\n", "instances: [\n", "catalogue.yaml:"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_field(tmp_path, old, new, told):
    path = written(tmp_path, ENTRY)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InstanceError, match=told):
        read_catalogue(path)


def test_everything_wrong_is_told_at_once(tmp_path):
    path = written(tmp_path, ENTRY, ENTRY)
    path.write_text(path.read_text().replace("bytes: 10", "bytes: -1", 1))
    with pytest.raises(InstanceError) as told:
        read_catalogue(path)
    assert len(str(told.value).splitlines()) == 2
    assert "gangs-homogeneous/x is listed twice" in str(told.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bound": 3, "status": LevelStatus.FEASIBLE}, "4 is beyond the bound 3"),
        ({"bound": 5}, "4 with bound 5 is not OPTIMAL"),
        ({"status": LevelStatus.FEASIBLE}, "4 with bound 4 is not FEASIBLE"),
        ({"bound": 5, "status": LevelStatus.FEASIBLE}, "has a gap of 25.00%; 1 % is allowed"),
        ({"bound": None, "status": LevelStatus.FEASIBLE}, "there is no bound"),
        ({"sense": Sense.MIN, "bound": 5}, "4 is beyond the bound 5"),
    ],
)
def test_levels_that_can_not_be_true_or_are_not_good_enough(change, told):
    assert any(told in each for each in wrong_with_level(replace(LEVEL, **change)))
    assert not list(wrong_with_level(LEVEL))


def test_one_percent_is_good_enough():
    level = replace(LEVEL, value=100, bound=101, status=LevelStatus.FEASIBLE)
    assert not list(wrong_with_level(level))
